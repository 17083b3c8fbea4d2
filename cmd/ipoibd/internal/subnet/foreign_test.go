package subnet

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/neigh/sa"
	"ipoibd/ud/port"
)

// foreigner sends MADs from a queue pair of its own to that of a client.
type foreigner struct {
	t  *testing.T
	qp hca.QP
	mr hca.MR
	ah hca.AH
}

// foreigner opens a queue pair on a new port with a LID, which may also be that of the subnet manager.
func (r *rig) foreigner(lid uint16) (f *foreigner, end func()) {
	r.t.Helper()
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	dev, err := r.subnet.Attach("foreigner", hca.GUID{2, 0xf}, lid).Open(nil)
	must(err)
	pd, err := dev.AllocPD()
	must(err)
	mr, err := pd.AllocMR(mad.Len, 0)
	must(err)
	cq, err := dev.CreateCQ(hca.CQSpec{Entries: 64})
	must(err)
	qp, err := pd.CreateQP(hca.QPSpec{SendWRs: 64, RecvWRs: 1, SendSGEs: 1, RecvSGEs: 1}, cq, cq)
	must(err)
	must(endpoint.Activate(qp, port.Plan{Port: 1}, mad.QKeyGSI))
	ah, err := pd.CreateAH(hca.AHSpec{Port: 1, DLID: ownLID})
	must(err)
	return &foreigner{r.t, qp, mr, ah}, func() {
		for _, c := range []func() error{qp.Close, ah.Close, cq.Close, mr.Close, pd.Close, dev.Close} {
			if err := c(); err != nil {
				r.t.Error(err)
			}
		}
	}
}

// send sends n bytes of a MAD.
func (f *foreigner) send(to hca.QPN, b []byte) {
	f.t.Helper()
	copy(f.mr.Bytes(), b)
	wr := hca.SendWR{SGList: []hca.SGE{f.mr.SGE(0, len(b))}, UD: hca.UDDest{AH: f.ah, QPN: to, QKey: mad.QKeyGSI}}
	if _, err := f.qp.PostSend([]hca.SendWR{wr}); err != nil {
		f.t.Error(err)
	}
	synctest.Wait()
}

// MADs from elsewhere, and those that are too short, are refused and counted. However many there are, the queue pair
// goes on.
func TestForeignMADsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		lid  uint16
		why  sa.Refusal
		size int
	}{
		"from another port":             {40, sa.RefuseNotSM, mad.Len},
		"from another queue pair":       {smLID, sa.RefuseNotQP1, mad.Len},
		"from another port, too short":  {40, sa.RefuseNotSM, 10},
		"from another queue pair, tiny": {smLID, sa.RefuseNotQP1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			onPort(t, func(t *testing.T, r *rig) {
				var answer []byte
				r.change = func(b []byte) []byte { answer = b; return b }
				u := r.user()
				u.Join(broadcast, false)
				until(t, time.Second, "a member", joined(u))
				f, end := r.foreigner(c.lid)
				defer end()
				before, qpn := r.port.Stats(), r.dev.queuePair()
				const count = 2 * recvSlots
				for range count {
					f.send(qpn, answer[:c.size])
				}
				after := r.port.Stats()
				if n := after.Refused[c.why] - before.Refused[c.why]; n != count || after.Received-before.Received != count {
					t.Errorf("%d of %d refused: %+v", n, count, after)
				}
				u.FindPath(r.peerGID(), 0, false)
				synctest.Wait()
				if len(results[sa.PathFound](u)) != 1 || r.dev.queuePair() != qpn || r.log.count("level=WARN") != 0 {
					t.Errorf("queue pair %s, was %s", r.dev.queuePair(), qpn)
				}
			})
		})
	}
}

// Answers that are too short are refused and counted, and the request is repeated.
func TestShortAnswersAreRefused(t *testing.T) {
	onPort(t, func(t *testing.T, r *rig) {
		for _, size := range []int{0, 1, 23, 55, 56, 255} {
			before := r.port.Stats()
			short := true
			r.change = func(b []byte) []byte {
				if short {
					short = false
					return b[:size]
				}
				return b
			}
			u := r.user()
			u.FindPath(r.peerGID(), 0, true)
			took := until(t, 5*time.Second, "answered", func() bool { return len(results[sa.PathFound](u)) > 0 })
			u.Close()
			after := r.port.Stats()
			if n := after.Refused[sa.RefuseMalformed] - before.Refused[sa.RefuseMalformed]; n != 1 || took > time.Second {
				t.Errorf("%d bytes: %d refused, answered after %s", size, n, took)
			}
			time.Sleep(2 * time.Second)
		}
	})
}
