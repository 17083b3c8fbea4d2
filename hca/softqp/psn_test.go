package softqp

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// Two queues of a queue pair and a fast path never send two packets with one sequence number, however their batches
// interleave, and whatever the transport takes of them. A queue that sends alone leaves none out.
func TestPacketsHaveNumbersOfTheirOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		psns := NewPSNs()
		queues := make([]*rig, rapid.IntRange(1, 2).Draw(t, "queues"))
		for i := range queues {
			queues[i] = newRig(&fatal{TB: nil, t: t}, defaultSpec())
			queues[i].cfg.PSNs = psns
		}
		for _, r := range queues {
			r.up(hca.QPRTS)
			copy(r.tx, tcpHeader)
			for i := range rapid.IntRange(0, 6).Draw(t, "requests") {
				wr := hca.SendWR{ID: uint64(i), SGList: []hca.SGE{r.txSGE(0, 1000)}, UD: hca.UDDest{QPN: 1, QKey: 2}}
				if rapid.Bool().Draw(t, "large") {
					wr.LSO = hca.LSO{Header: tcpHeader, MSS: rapid.IntRange(9, 1000).Draw(t, "MSS")}
				}
				if err := r.PostSend(&wr, ahTo(rapid.SampledFrom([]netip.Addr{peer4, peer6, group}).Draw(t, "to"))); err != nil {
					t.Fatal(err)
				}
			}
		}
		alone := len(queues) == 1 && rapid.Bool().Draw(t, "without a fast path")
		if !alone {
			psns.Move(new(uint32))
		}
		var used []uint32
		pending := make([]*Batch, len(queues))
		waits := func(i int) bool { return pending[i] != nil || queues[i].waiting() > 0 }
		for {
			var able []int
			for i := range queues {
				if waits(i) {
					able = append(able, i)
				}
			}
			if len(able) == 0 {
				break
			}
			i := rapid.SampledFrom(able).Draw(t, "queue")
			r := queues[i]
			switch b := pending[i]; {
			case !alone && rapid.Bool().Draw(t, "the fast path sends"):
				used = append(used, (atomic.AddUint32(psns.next, 1)-1)&psnMask)
			case b == nil:
				pending[i] = r.fill()
			default:
				n := rapid.IntRange(0, len(b.Trains())).Draw(t, "accepted")
				for k := range n {
					for _, u := range parseTrain(r, r.env, &b.Trains()[k]) {
						used = append(used, u.PSN)
					}
				}
				r.Finish(b, n)
				pending[i] = nil
			}
		}
		first := uint32(0xfffffe) // see step
		for i := range used {
			used[i] = (used[i] - first) & psnMask // in the order in which they are taken
		}
		slices.Sort(used)
		for i, n := range used {
			if i > 0 && n == used[i-1] {
				t.Fatalf("two packets with the number %d", n)
			}
			if alone && n != uint32(i) {
				t.Fatalf("number %d of packet %d", n, i)
			}
		}
	})
}
