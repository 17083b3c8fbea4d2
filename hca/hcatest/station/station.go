// Package station provides a UD queue pair on any backend, ready to send and receive, for
// tests and benchmarks of the data path. Its messages do not allocate.
package station

import (
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
)

const (
	Depth   = 64   // requests of each queue
	Payload = 1024 // bytes of the longest message
	slot    = hca.GRHLen + Payload
	qkey    = hca.QKey(0xb1b)
)

// Station is a queue pair in RTS with its CQs, memory and PD.
type Station struct {
	testing.TB
	Dev        hca.Device
	index      int // of its GID
	pd         hca.PD
	Send, Recv hca.CQ
	QP         hca.QP
	mr         hca.MR // Depth slots to receive into, and one to send from
	wcs        []hca.WC
}

// New creates a station on a device, with the GID at an index. Station and device are
// closed at the end of the test.
func New(t testing.TB, dev hca.Device, index int) *Station {
	t.Helper()
	s := &Station{TB: t, Dev: dev, index: index, wcs: make([]hca.WC, Depth)}
	t.Cleanup(func() { s.Must(dev.Close(), "close device") })
	var err error
	s.pd, err = dev.AllocPD()
	s.Made(s.pd, err, "PD")
	s.mr, err = s.pd.AllocMR((Depth+1)*slot, hca.AccessLocalWrite)
	s.Made(s.mr, err, "MR")
	s.Send, err = dev.CreateCQ(hca.CQSpec{Entries: Depth})
	s.Made(s.Send, err, "send CQ")
	s.Recv, err = dev.CreateCQ(hca.CQSpec{Entries: Depth})
	s.Made(s.Recv, err, "receive CQ")
	spec := hca.QPSpec{SendWRs: Depth, RecvWRs: Depth, SendSGEs: 1, RecvSGEs: 1, SignalAll: true}
	s.QP, err = s.pd.CreateQP(spec, s.Send, s.Recv)
	s.Made(s.QP, err, "QP")
	s.up()
	return s
}

// Must fails the test unless err is nil.
func (s *Station) Must(err error, what string) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// Made checks that an object was created, and closes it at the end of the test.
func (s *Station) Made(c interface{ Close() error }, err error, what string) {
	s.Helper()
	s.Must(err, what)
	s.Cleanup(func() { s.Must(c.Close(), "close "+what) })
}

func (s *Station) up() {
	s.Helper()
	from := hca.QPReset
	for _, to := range []hca.QPState{hca.QPInit, hca.QPRTR, hca.QPRTS} {
		attr := hca.QPAttr{State: to, Port: 1, QKey: qkey}
		s.Must(s.QP.Modify(attr, hca.AttrState|hca.UDTransition(from, to).Required), "to "+to.String())
		from = to
	}
}

// Outgoing is the memory that the sends of Towards send from.
func (s *Station) Outgoing() []byte { return s.mr.Bytes()[Depth*slot:] }

// Towards returns n sends of a payload to another station.
func (s *Station) Towards(to *Station, n, size int) []hca.SendWR {
	s.Helper()
	port, err := to.Dev.QueryPort(1)
	s.Must(err, "query port")
	ah, err := s.pd.CreateAH(hca.AHSpec{
		Port: 1, Global: true, DGID: port.GIDs[to.index].GID, SGIDIndex: s.index, HopLimit: 64,
	})
	s.Made(ah, err, "AH")
	wrs := make([]hca.SendWR, n)
	for i := range wrs {
		wrs[i] = hca.SendWR{
			ID: uint64(i), SGList: []hca.SGE{s.mr.SGE(Depth*slot, size)},
			UD: hca.UDDest{AH: ah, QPN: to.QP.Num(), QKey: qkey},
		}
	}
	return wrs
}

// Large returns a large send to another station. It has as many segments of Payload bytes as the
// other station has receives.
func (s *Station) Large(to *Station) hca.SendWR {
	s.Helper()
	wr := s.Towards(to, 1, 0)[0]
	header := hcatest.TCPHeader()
	wr.LSO = hca.LSO{Header: header, MSS: Payload - len(header)}
	wr.SGList[0] = s.mr.SGE(0, Depth*wr.LSO.MSS)
	return wr
}

// Receives returns receives into the first n slots.
func (s *Station) Receives(n int) []hca.RecvWR {
	wrs := make([]hca.RecvWR, n)
	for i := range wrs {
		wrs[i] = hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{s.mr.SGE(i*slot, slot)}}
	}
	return wrs
}

// PostSend posts all sends.
func (s *Station) PostSend(wrs []hca.SendWR) {
	if n, err := s.QP.PostSend(wrs); n != len(wrs) || err != nil {
		s.Fatalf("posted %d of %d sends: %v", n, len(wrs), err)
	}
}

// PostRecv posts all receives.
func (s *Station) PostRecv(wrs []hca.RecvWR) {
	if n, err := s.QP.PostRecv(wrs); n != len(wrs) || err != nil {
		s.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
}

// awaitLimit bounds the wait for completions, because a lost message never completes.
const awaitLimit = 10 * time.Second

// Await waits for n completions, which must all be successes.
func (s *Station) Await(cq hca.CQ, n int) {
	for end := time.Now().Add(awaitLimit); n > 0; {
		got := s.Poll(cq, n)
		if n -= got; got > 0 || n == 0 {
			continue
		}
		s.Must(cq.Arm(), "arm")
		if got = s.Poll(cq, n); got == 0 {
			s.Must(cq.Wait(end), "wait")
		}
		if got == 0 && time.Now().After(end) {
			s.Fatalf("%d completions are missing after %v", n, awaitLimit)
		}
		n -= got
	}
}

// Poll polls the available completions, at most limit, which must all be successes.
func (s *Station) Poll(cq hca.CQ, limit int) int {
	n, err := cq.Poll(s.wcs[:limit])
	s.Must(err, "poll")
	for _, wc := range s.wcs[:n] {
		if wc.Status != hca.WCSuccess {
			s.Fatalf("completion %+v", wc)
		}
	}
	return n
}

// Carry sends a batch to another station, which receives it, and polls all completions.
func (s *Station) Carry(to *Station, sends []hca.SendWR, recvs []hca.RecvWR) {
	to.PostRecv(recvs)
	s.PostSend(sends)
	s.Await(s.Send, len(sends))
	to.Await(to.Recv, len(recvs))
}
