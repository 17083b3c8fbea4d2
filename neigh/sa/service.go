package sa

import "ipoibd/hca/mad"

// service is what the SA says of itself in its ClassPortInfo, which is the first question after every change.
type service struct {
	requests *requests
	req      request
	pace     pace
	info     mad.ClassPortInfo // zero: not known
	settled  bool              // known, or there is no answer
	news     bool              // settled has become true, which Step passes on to the groups
}

func (s *service) init(q *requests) {
	s.requests = q
	s.req.subject = s
}

// ask asks for the ClassPortInfo. Until the answer, an earlier one counts.
func (s *service) ask() { s.requests.start(&s.req, s.pace.due(s.requests.step.now, 0)) }

// reset forgets everything.
func (s *service) reset() {
	s.requests.cancel(&s.req)
	s.requests.respTime = 0
	s.info, s.settled, s.pace = mad.ClassPortInfo{}, false, pace{}
}

// sendOnly returns the join state of members that only send.
func (s *service) sendOnly() mad.JoinState {
	if s.info.Capability2&mad.CapSendOnlyFull != 0 {
		return mad.JoinSendOnlyFull
	}
	return mad.JoinSendOnly
}

func (s *service) settle() {
	s.news = s.news || !s.settled
	s.settled = true
}

func (s *service) urgent() bool { return true }

func (s *service) put([]byte) (mad.Method, mad.Attribute, mad.Mask) {
	if s.req.tries == 0 {
		s.pace.set(s.requests.step.now)
	}
	return mad.MethodGet, mad.AttrClassPortInfo, 0
}

func (s *service) fits([]byte) bool { return true }

// answered takes over the answer. An SA that refuses the question has none of the capabilities; it is asked again
// later.
func (s *service) answered(status mad.Status, data []byte) {
	s.info = mad.ClassPortInfo{}
	if status == mad.StatusOK && s.info.Parse(data) == nil {
		s.requests.respTime = s.info.RespTime.Duration()
	} else {
		s.requests.start(&s.req, s.requests.step.now.Add(s.requests.step.jitter(serviceInterval)))
	}
	s.settle()
}

// unanswered lets the joins go on without the capabilities after some tries. The question stays open.
func (s *service) unanswered(Reason) {
	if s.requests.overdue(&s.req) {
		s.settle()
	}
}
