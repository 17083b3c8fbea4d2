package device

import (
	"fmt"
	"strings"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// closePatience is how long closing an HCA in error state is waited for: what
// hangs in it returns only when it is reset.
const closePatience = 20 * time.Millisecond

// close ends the use of the session. It comes again where that does not end.
func (o *owner) close(a qprecovery.Close) {
	o.log.Warn("releasing the device", "reason", a.Reason.String())
	for _, s := range []*Session{o.session, o.closing} {
		if a.Fail && s != nil {
			s.Fail(fmt.Errorf("%w: %s", hca.ErrIO, a.Reason))
		}
	}
	if o.session != nil {
		o.retire()
	}
}

// retire ends the session, and closes it once its users have released it.
func (o *owner) retire() {
	s := o.session
	o.session, o.ports, o.closing = nil, nil, s
	s.retire()
	o.work.Go(func() {
		o.closeSession(s)
		o.tell(func(o *owner) {
			o.closing = nil
			o.step(qprecovery.Closed{Gen: uint32(s.Instance)})
		})
	})
}

func (o *owner) closeSession(s *Session) {
	select {
	case <-s.idle:
	case <-s.abandoned:
	}
	s.stopEvents()
	done := make(chan struct{})
	o.work.Go(func() { defer close(done); o.closeHCA(s) })
	var enough <-chan time.Time
	if s.guard.Err() != nil {
		enough = time.After(closePatience)
	}
	select {
	case <-done:
	case <-enough:
	}
}

// closeHCA closes the context. One that is busy, or does not answer, is closed in
// the error state, in which that cannot fail.
func (d *Device) closeHCA(s *Session) {
	err := s.Close()
	if err == nil {
		return
	}
	d.log.Error("cannot close the device; leaving it in error state", "err", err)
	s.Fail(err)
	_ = s.Close() // it is in error state
}

// abandon leaves the users behind that have not released the session: their handles are
// zombies.
func (o *owner) abandon() {
	if s := o.closing; s != nil {
		o.note(late(s.usedBy()))
		s.abandon()
	}
}

// late names the users that have not released a session in time.
func late(users []string) string {
	if len(users) == 0 {
		return "closing it takes too long; going on without"
	}
	return "not let go in time by " + strings.Join(users, ", ") + "; going on without"
}

// describe names those who hold the device (R16).
func describe(end reset.Ended) string {
	text := "not reset: " + end.Outcome.String()
	if end.Detail != "" {
		text += ": " + end.Detail
	}
	return text
}
