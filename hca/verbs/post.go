//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"

	"ipoibd/hca"
)

// maxPost bounds the requests of one call of libibverbs, so that the device starts early. The
// segments of one large send may exceed it.
const maxPost = 128

// Reasons why a request is not passed to libibverbs; the reasons for sends only are in send.go.
var (
	errState   = fmt.Errorf("%w: the queue pair accepts no requests in this state", hca.ErrInvalid)
	errTooLong = fmt.Errorf("%w: more scatter/gather entries than the queue pair was created for", hca.ErrInvalid)
)

// side is one of the two queues of a QP.
type side[W any] struct {
	verb string
	// fill translates requests for one call of libibverbs, up to the first that must not be
	// posted, for which it returns the error.
	fill func([]W) (int, error)
	// post posts the n requests that fill has translated, and returns how many the device
	// accepted, and why not the next one.
	post func(n int) (taken int, why syscall.Errno)

	mu     sync.Mutex // held by a post
	closed error      // why posts are refused
}

// gate opens or closes the queue. It waits for the current post.
func (s *side[W]) gate(b hca.QueueBehaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed = nil; b == hca.QueueRefuses {
		s.closed = errState
	}
}

// postAll posts a batch, with a call of libibverbs for every maxPost requests.
func (s *side[W]) postAll(wrs []W, on hca.QPN) (taken int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for err = s.closed; err == nil && taken < len(wrs); {
		var n int
		if n, err = s.fill(wrs[taken:]); n == 0 {
			break
		}
		n, why := s.post(n)
		if taken += n; why != 0 {
			return taken, failed(s.verb, on.String(), why)
		}
	}
	if err != nil {
		err = refused(s.verb, on.String(), err)
	}
	return taken, err
}

// PostSend implements [hca.QP].
func (q *QP) PostSend(wrs []hca.SendWR) (int, error) {
	if err := q.enter(); err != nil {
		return 0, refused(verbPostSend, q.num.String(), err)
	}
	defer q.leave()
	return q.send.postAll(wrs, q.num)
}

// PostRecv implements [hca.QP].
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) {
	if err := q.enter(); err != nil {
		return 0, refused(verbPostRecv, q.num.String(), err)
	}
	defer q.leave()
	return q.recv.postAll(wrs, q.num)
}
