//go:build vm && cgo && linux

package verbs_test

import (
	"fmt"
	"testing"
	"time"

	"ipoibd/hca"
)

const (
	depth   = 64 // requests of a queue
	payload = 1024
	slot    = hca.GRHLen + payload
	qkey    = hca.QKey(0xb1b)
)

// station is a queue pair in RTS with all that it needs to send and receive.
type station struct {
	testing.TB
	dev        hca.Device
	index      int // of its GID
	pd         hca.PD
	send, recv hca.CQ
	qp         hca.QP
	mr         hca.MR // depth slots to receive into, and one to send from
	wcs        []hca.WC
}

// pair returns two stations, one on each device.
func (u underlay) pair(t testing.TB) (a, b *station) {
	t.Helper()
	return u.station(t, envA), u.station(t, envB)
}

func (u underlay) station(t testing.TB, env string) *station {
	t.Helper()
	host := u.host(t, env)
	s := newStation(t, host.Dev)
	s.index = host.SGIDIndex
	return s
}

// newStation makes a station on a device, closed with the test.
func newStation(t testing.TB, dev hca.Device) *station {
	t.Helper()
	s := &station{TB: t, dev: dev, wcs: make([]hca.WC, depth)}
	t.Cleanup(func() { s.must(dev.Close(), "close device") })
	var err error
	s.pd, err = dev.AllocPD()
	s.made(s.pd, err, "PD")
	s.mr, err = s.pd.AllocMR((depth+1)*slot, hca.AccessLocalWrite)
	s.made(s.mr, err, "MR")
	s.send, err = dev.CreateCQ(hca.CQSpec{Entries: depth})
	s.made(s.send, err, "send CQ")
	s.recv, err = dev.CreateCQ(hca.CQSpec{Entries: depth})
	s.made(s.recv, err, "receive CQ")
	s.qp, err = s.pd.CreateQP(hca.QPSpec{SendWRs: depth, RecvWRs: depth, SendSGEs: 1, RecvSGEs: 1, SignalAll: true}, s.send, s.recv)
	s.made(s.qp, err, "QP")
	s.up()
	return s
}

func (s *station) must(err error, what string) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// made checks that an object was made, and closes it with the test.
func (s *station) made(c interface{ Close() error }, err error, what string) {
	s.Helper()
	s.must(err, what)
	s.Cleanup(func() { s.must(c.Close(), "close "+what) })
}

func (s *station) up() {
	s.Helper()
	from := hca.QPReset
	for _, to := range []hca.QPState{hca.QPInit, hca.QPRTR, hca.QPRTS} {
		attr := hca.QPAttr{State: to, Port: 1, QKey: qkey}
		s.must(s.qp.Modify(attr, hca.AttrState|hca.UDTransition(from, to).Required), "to "+to.String())
		from = to
	}
}

// towards makes n sends of a payload to another station.
func (s *station) towards(to *station, n, size int) []hca.SendWR {
	s.Helper()
	port, err := to.dev.QueryPort(1)
	s.must(err, "query port")
	ah, err := s.pd.CreateAH(hca.AHSpec{
		Port: 1, Global: true, DGID: port.GIDs[to.index].GID, SGIDIndex: s.index, HopLimit: 64,
	})
	s.made(ah, err, "AH")
	wrs := make([]hca.SendWR, n)
	for i := range wrs {
		wrs[i] = hca.SendWR{
			ID: uint64(i), SGList: []hca.SGE{s.mr.SGE(depth*slot, size)},
			UD: hca.UDDest{AH: ah, QPN: to.qp.Num(), QKey: qkey},
		}
	}
	return wrs
}

// receives names the first n slots.
func (s *station) receives(n int) []hca.RecvWR {
	wrs := make([]hca.RecvWR, n)
	for i := range wrs {
		wrs[i] = hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{s.mr.SGE(i*slot, slot)}}
	}
	return wrs
}

func (s *station) postSend(wrs []hca.SendWR) {
	if n, err := s.qp.PostSend(wrs); n != len(wrs) || err != nil {
		s.Fatalf("posted %d of %d sends: %v", n, len(wrs), err)
	}
}

func (s *station) postRecv(wrs []hca.RecvWR) {
	if n, err := s.qp.PostRecv(wrs); n != len(wrs) || err != nil {
		s.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
}

// await takes n completions, all of them successes.
func (s *station) await(cq hca.CQ, n int) {
	for n > 0 {
		got := s.poll(cq, n)
		if n -= got; got > 0 || n == 0 {
			continue
		}
		s.must(cq.Arm(), "arm")
		if got = s.poll(cq, n); got == 0 {
			s.must(cq.Wait(time.Time{}), "wait")
		}
		n -= got
	}
}

func (s *station) poll(cq hca.CQ, limit int) int {
	n, err := cq.Poll(s.wcs[:limit])
	s.must(err, "poll")
	for _, wc := range s.wcs[:n] {
		if wc.Status != hca.WCSuccess {
			s.Fatalf("completion %+v", wc)
		}
	}
	return n
}

// A batch costs no allocation on its way through any of the verbs of the data path.
func TestDataPathDoesNotAllocate(t *testing.T) {
	a, b := underlays[0].pair(t)
	sends, recvs := a.towards(b, 8, 100), b.receives(8)
	if n := testing.AllocsPerRun(50, func() {
		b.postRecv(recvs)
		a.postSend(sends)
		a.await(a.send, len(sends))
		b.await(b.recv, len(recvs))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkMessages sends batches one way: UD messages per second.
func BenchmarkMessages(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			x, y := underlays[1].pair(b)
			sends, recvs := x.towards(y, batch, payload), y.receives(batch)
			b.ReportAllocs()
			for b.Loop() {
				y.postRecv(recvs)
				x.postSend(sends)
				x.await(x.send, batch)
				y.await(y.recv, batch)
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}

// BenchmarkLatency sends one message there and back: half a round.
func BenchmarkLatency(b *testing.B) {
	x, y := underlays[1].pair(b)
	there, back := x.towards(y, 1, 64), y.towards(x, 1, 64)
	for b.Loop() {
		pass(x, y, there)
		pass(y, x, back)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(2*b.N), "us/oneway")
}

// pass sends one message.
func pass(from, to *station, wr []hca.SendWR) {
	to.postRecv(to.receives(1))
	from.postSend(wr)
	to.await(to.recv, 1)
	from.await(from.send, 1)
}
