package ud

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// fakeRecorder keeps a copy of everything.
type fakeRecorder struct {
	fromHost, toHost, sent, received [][]byte
	at                               []time.Time
	wrs                              []hca.SendWR
	wcs                              []hca.WC
	done                             int
}

func (r *fakeRecorder) FromHost(at time.Time, frame []byte) {
	r.fromHost, r.at = append(r.fromHost, slices.Clone(frame)), append(r.at, at)
}

func (r *fakeRecorder) ToHost(at time.Time, pieces [][]byte) {
	r.toHost, r.at = append(r.toHost, slices.Concat(pieces...)), append(r.at, at)
}

func (r *fakeRecorder) Sent(at time.Time, wr *hca.SendWR, msg []byte) {
	r.sent, r.wrs, r.at = append(r.sent, slices.Clone(msg)), append(r.wrs, *wr), append(r.at, at)
}

func (r *fakeRecorder) Received(at time.Time, wc *hca.WC, buf []byte) {
	r.received, r.wcs, r.at = append(r.received, slices.Clone(buf)), append(r.wcs, *wc), append(r.at, at)
}

func (r *fakeRecorder) Done() { r.done++ }

// Recorders see frames as they were read, and sends as the QP accepted them, with the
// messages of the slow path; not what is dropped or refused.
func TestTxRecords(t *testing.T) {
	b := newTxBench(t, 128)
	first, second := &fakeRecorder{}, &fakeRecorder{}
	b.Record([]Recorder{first, second})
	toUnknown := frame(macX, macA, ipoib.EtherTypeIPv4, ipv4("10.0.0.9", 100))
	b.src.add(toB(100), toUnknown, toB(200))
	b.Inject(destAll, msg(ipoib.EtherTypeARP, make([]byte, 56)))
	b.qp.invalid = func(w *hca.SendWR) bool { return w.SGList[0].Length == 204 }
	before := time.Now()
	b.pump(t)
	for _, r := range []*fakeRecorder{first, second} {
		if len(r.fromHost) != 3 || !bytes.Equal(r.fromHost[0], toB(100)) || !bytes.Equal(r.fromHost[1], toUnknown) {
			t.Errorf("%d frames recorded, want 3", len(r.fromHost))
		}
		if len(r.sent) != 2 || len(r.sent[0]) != 60 || r.wrs[0].UD != destAll || len(r.sent[1]) != 104 || r.wrs[1].UD != destB {
			t.Errorf("%d sends recorded: %+v, want the injected message and one frame", len(r.sent), r.wrs)
		}
		if !bytes.Equal(r.sent[1][ipoib.HeaderLen:], toB(100)[txPayload:]) {
			t.Errorf("message %x", r.sent[1])
		}
		if r.done == 0 || slices.ContainsFunc(r.at, func(at time.Time) bool { return at.Before(before) || at.After(time.Now()) }) {
			t.Errorf("done %d, times %v", r.done, r.at)
		}
	}
	b.Record(nil)
	b.src.add(toB(100))
	b.pump(t)
	if len(first.fromHost) != 3 {
		t.Error("recorded after the end")
	}
}

// A large send is recorded once, with its header and its whole payload.
func TestTxRecordsLargeSends(t *testing.T) {
	b := newTxBench(t, 128)
	b.Detach()
	b.maxTSO = 1 << 16
	b.qp.mr = &fakeMR{make([]byte, 128*TxStride(testMTU, b.maxTSO))}
	b.attach(t, 2)
	rec := &fakeRecorder{}
	b.Record([]Recorder{rec})
	f := largeTCP(macB, 5000, 1000)
	b.src.add(f)
	b.pump(t)
	if len(rec.sent) != 1 || rec.wrs[0].LSO.MSS != 1000 || !bytes.Equal(rec.sent[0][ipoib.HeaderLen:], f[txPayload:]) {
		t.Fatalf("%d sends recorded", len(rec.sent))
	}
}

// Recorders see successful receives before any check, and the frames that the sink accepted.
func TestRxRecords(t *testing.T) {
	b := newRxBench(t, 128)
	rec := &fakeRecorder{}
	b.Record([]Recorder{rec})
	good := msg(ipoib.EtherTypeIPv4, ipv4("10.0.0.1", 100))
	strange := msg(0x1234, make([]byte, 20))
	for _, m := range [][]byte{good, strange, good} {
		b.qp.receive(m, gidA)
	}
	b.sink.accept = 1
	b.pump(t)
	if len(rec.received) != 3 || !bytes.Equal(rec.received[1][rxMessage:][:len(strange)], strange) || rec.wcs[1].SrcQPN != qpnB {
		t.Errorf("%d receives recorded, want 3", len(rec.received))
	}
	if len(rec.toHost) != 1 || !bytes.Equal(rec.toHost[0], b.sink.frames[0]) {
		t.Errorf("%d frames recorded, want the accepted one", len(rec.toHost))
	}
	failed := len(rec.received)
	b.qp.recvCQ.add(hca.WC{ID: b.qp.recvs[0].id, Status: hca.WCWRFlushErr}, hca.WC{ID: 7 << 32})
	b.pump(t)
	if len(rec.received) != failed {
		t.Error("a failed or a stale receive was recorded")
	}
}

// BenchmarkRecorded shows what the recorders cost a batch of 64 frames of 1500 bytes, from the
// source to the completion: without any, and with one that keeps nothing.
func BenchmarkRecorded(b *testing.B) {
	for name, list := range map[string][]Recorder{"none": nil, "one": {discardRecorder{}}} {
		b.Run(name, func(b *testing.B) {
			tx := newTxLoop(b, toB(1500), hca.Batch)
			tx.Record(list)
			b.ReportAllocs()
			for b.Loop() {
				if err := tx.Pump(); err != nil {
					b.Fatal(err)
				}
				tx.qp.sends = tx.qp.sends[:0]
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N*hca.Batch), "ns/frame")
		})
	}
}

type discardRecorder struct{}

func (discardRecorder) FromHost(time.Time, []byte)          {}
func (discardRecorder) ToHost(time.Time, [][]byte)          {}
func (discardRecorder) Sent(time.Time, *hca.SendWR, []byte) {}
func (discardRecorder) Received(time.Time, *hca.WC, []byte) {}
func (discardRecorder) Done()                               {}
