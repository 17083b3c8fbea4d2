package sm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Reasons why there is no answer of the SA.
var (
	errSilent   = errors.New("the SA has not answered")
	errReturned = errors.New("the request could not be delivered to the SA")
)

// askInterval is how often a request to the SA is sent until it is answered: ibsim loses those to a subnet manager that
// it has not yet noticed to have ended.
const askInterval = time.Second

// askSA sends a request to the SA in the name of a host, and returns the answer.
func (s *Switch) askSA(i int, mad []byte) ([]byte, error) {
	reply := make(chan []byte, 1)
	tid := rand.Uint64() & tidMask
	setTID(mad, tid)
	for range callLimit / askInterval {
		s.mu.Lock()
		h := s.hosts[i]
		h.relay.add(request{tid: tid, reply: reply})
		err := h.client.send(&envelope{dlid: h.control.SMLID, destQP: qpGeneral, fromQP: qpGeneral, mad: [madLen]byte(mad)})
		s.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("ask the SA: %w", err)
		}
		select {
		case answer := <-reply:
			if answer == nil {
				return nil, errReturned
			}
			return answer, nil
		case <-time.After(askInterval):
		}
	}
	return nil, errSilent
}

// group sends a request about a group in the name of a host.
func (s *Switch) group(i int, request []byte) (Group, error) {
	answer, err := s.askSA(i, request)
	if err != nil {
		return Group{}, err
	}
	if status := statusError(statusOf(answer)); status != 0 {
		return Group{}, fmt.Errorf("method %#x on group %v: %w", request[offMethod], parseGroup(request).MGID, status)
	}
	return parseGroup(answer), nil
}
