package memsubnet_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
)

const (
	qkey = hca.QKey(0x0b1b)
	slot = hca.GRHLen + 4096 // bytes of one message

)

// host is a port with its open HCA and a queue pair in RTS, which has receives posted.
type host struct {
	*testing.T
	port *memsubnet.Port
	lid  uint16 // at the start
	dev  *memsubnet.Device
	pd   hca.PD
	mr   hca.MR
	qp   hca.QP

	sendCQ, recvCQ hca.CQ
}

// receives of a host; each is in two pieces, cut within the GRH area.
const (
	receives = 16
	cut      = 13
)

// subnet returns a subnet without an SA. The manager has LID 1.
func subnet(t *testing.T) *memsubnet.Subnet {
	t.Helper()
	return memsubnet.New(memfabric.New(1), memsubnet.SM{LID: 1})
}

// attach adds a host. All is closed at the end of the test.
func attach(t *testing.T, s *memsubnet.Subnet, name string, lid uint16) *host {
	t.Helper()
	h := &host{T: t, port: s.Attach(name, hca.GUID{0x10, 7: byte(lid)}, lid), lid: lid}
	h.open()
	return h
}

// open opens the HCA of a host.
func (h *host) open() {
	h.Helper()
	var err error
	h.dev, err = h.port.Open(nil)
	h.made(h.dev, err)
	h.pd, err = h.dev.AllocPD()
	h.made(h.pd, err)
	h.mr, err = h.pd.AllocMR((receives+1)*slot, hca.AccessLocalWrite)
	h.made(h.mr, err)
	h.sendCQ, err = h.dev.CreateCQ(hca.CQSpec{Entries: 64})
	h.made(h.sendCQ, err)
	h.recvCQ, err = h.dev.CreateCQ(hca.CQSpec{Entries: 64})
	h.made(h.recvCQ, err)
	spec := hca.QPSpec{SendWRs: 64, RecvWRs: 64, SendSGEs: 1, RecvSGEs: 2, SignalAll: true}
	h.qp, err = h.pd.CreateQP(spec, h.sendCQ, h.recvCQ)
	h.made(h.qp, err)
	h.up(0, qkey)
}

// up brings the queue pair from any state to RTS, and posts the receives.
func (h *host) up(pkeyIndex uint16, key hca.QKey) {
	h.Helper()
	h.must(h.qp.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState))
	from := hca.QPReset
	for _, to := range []hca.QPState{hca.QPInit, hca.QPRTR, hca.QPRTS} {
		attr := hca.QPAttr{State: to, Port: 1, PKeyIndex: pkeyIndex, QKey: key}
		h.must(h.qp.Modify(attr, hca.AttrState|hca.UDTransition(from, to).Required))
		from = to
	}
	for i := range receives {
		h.postRecv(i)
	}
}

// postRecv posts a receive whose ID is not unique.
func (h *host) postRecv(i int) {
	h.Helper()
	list := []hca.SGE{h.mr.SGE(i*slot, cut), h.mr.SGE(i*slot+cut, slot-cut)}
	_, err := h.qp.PostRecv([]hca.RecvWR{{ID: 7, SGList: list}})
	h.must(err)
}

func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// made checks that an object was created, and closes it at the end of the test.
func (h *host) made(c interface{ Close() error }, err error) {
	h.Helper()
	h.must(err)
	h.Cleanup(func() {
		if err := c.Close(); err != nil {
			h.Errorf("close %T: %v", c, err)
		}
	})
}

// ah creates a handle.
func (h *host) ah(spec hca.AHSpec) hca.AH {
	h.Helper()
	spec.Port = 1
	ah, err := h.pd.CreateAH(spec)
	h.made(ah, err)
	return ah
}

// to returns the destination of another host, without a GRH.
func (h *host) to(x *host) hca.UDDest {
	h.Helper()
	return hca.UDDest{AH: h.ah(hca.AHSpec{DLID: x.lid}), QPN: x.qp.Num(), QKey: qkey}
}

// toGroup returns the destination of a group.
func (h *host) toGroup(g hca.MulticastGroup) hca.UDDest {
	h.Helper()
	return hca.UDDest{
		AH:  h.ah(hca.AHSpec{DLID: g.MLID, Global: true, DGID: g.MGID}),
		QPN: hca.QPNMulticast, QKey: qkey,
	}
}

// post posts a message.
func (h *host) post(to hca.UDDest, msg []byte) {
	h.Helper()
	sge := h.mr.SGE(receives*slot, copy(h.mr.Bytes()[receives*slot:], msg))
	if _, err := h.qp.PostSend([]hca.SendWR{{ID: 8, SGList: []hca.SGE{sge}, UD: to}}); err != nil {
		h.Fatal(err)
	}
}

// send sends a message, and waits until it has completed with success.
func (h *host) send(to hca.UDDest, msg string) {
	h.Helper()
	h.post(to, []byte(msg))
	if wcs := h.next(h.sendCQ); len(wcs) != 1 || wcs[0].Status != hca.WCSuccess || wcs[0].ID != 8 {
		h.Fatalf("send completions %+v", wcs)
	}
}

// settle is longer than any message needs, and than the software HCA waits before it receives by itself.
const settle = time.Second

// next returns the completions that are there after a while.
func (h *host) next(cq hca.CQ) []hca.WC {
	h.Helper()
	time.Sleep(settle)
	wcs := make([]hca.WC, 64)
	n, err := cq.Poll(wcs)
	h.must(err)
	return wcs[:n]
}

// message is a received message.
type message struct {
	hca.WC
	area [hca.GRHLen]byte
	text string
}

// received returns the messages that have arrived since the last call, and posts all receives again.
func (h *host) received() (out []message) {
	h.Helper()
	for i, wc := range h.next(h.recvCQ) {
		b := h.mr.Bytes()[i*slot:][:wc.ByteLen]
		if wc.Status != hca.WCSuccess || wc.ID != 7 || wc.QPN != h.qp.Num() {
			h.Fatalf("receive %+v", wc)
		}
		out = append(out, message{wc, [hca.GRHLen]byte(b), string(b[hca.GRHLen:])})
	}
	attr, err := h.qp.Query()
	h.must(err)
	h.up(attr.PKeyIndex, attr.QKey)
	return out
}

// want receives messages with these texts.
func (h *host) want(texts ...string) (got []message) {
	h.Helper()
	got = h.received()
	var have []string
	for _, m := range got {
		have = append(have, m.text)
	}
	if !slices.Equal(have, texts) {
		h.Errorf("received %q, want %q", have, texts)
	}
	return got
}

// events returns the events that have arrived.
func (h *host) events() (out []hca.EventType) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), settle)
	defer cancel()
	for {
		ev, err := h.dev.NextEvent(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return out
		}
		h.must(err)
		if ev.On.Kind == hca.KindPort && ev.On.Num != 1 {
			h.Errorf("event %+v", ev)
		}
		out = append(out, ev.Type)
	}
}

func (h *host) wantEvents(want ...hca.EventType) {
	h.Helper()
	if got := h.events(); !slices.Equal(got, want) {
		h.Errorf("events %v, want %v", got, want)
	}
}

// wantDrops checks how many messages a subnet has not forwarded, by reason, and that there are no others.
func wantDrops(t *testing.T, s *memsubnet.Subnet, want map[memsubnet.Drop]uint64) {
	t.Helper()
	for _, why := range []memsubnet.Drop{
		memsubnet.DropInactive, memsubnet.DropNoLID, memsubnet.DropWrongGID, memsubnet.DropNotMember,
		memsubnet.DropNotJoined, memsubnet.DropPKey, memsubnet.DropBadMAD, memsubnet.DropLostMAD,
	} {
		if got := s.Dropped(why); got != want[why] {
			t.Errorf("%d messages dropped because %q, want %d", got, why, want[why])
		}
	}
}
