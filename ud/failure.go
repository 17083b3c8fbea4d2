package ud

import (
	"strings"
	"sync/atomic"

	"ipoibd/hca"
)

// Failure describes a work request that completed with an error.
type Failure struct {
	WC   hca.WC
	SGE  hca.SGE    // its buffer
	Dest hca.UDDest // destination of a send
}

// statuses counts failed completions by status; the last entry is for values
// that the contract does not define.
type statuses [hca.NumWCStatus + 1]atomic.Uint64

func (s *statuses) add(status hca.WCStatus) { s[min(status, hca.NumWCStatus)].Add(1) }

// appendTo appends the counters that are not zero. A failed request loses a frame, except a
// receive that was flushed, which held none; flushed is the kind of flushed requests.
func (s *statuses) appendTo(out []hca.Counter, prefix string, flushed hca.CounterKind) []hca.Counter {
	for i := range s {
		if v := s[i].Load(); v > 0 {
			name := prefix + "wc_" + strings.ToLower(hca.WCStatus(i).String())
			c := hca.Counter{Name: name, Kind: hca.CountDrop, Value: v}
			if hca.WCStatus(i) == hca.WCWRFlushErr {
				c.Kind = flushed
			}
			out = append(out, c)
		}
	}
	return out
}
