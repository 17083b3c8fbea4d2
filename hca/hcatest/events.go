package hcatest

import (
	"context"
	"errors"

	"ipoibd/hca"
)

var eventChecks = []check{
	{name: "event/context_ends", run: eventContext},
	{name: "event/close_ends", run: eventClose},
	{name: "event/link", run: eventLink, needs: func(_ Features, h Host) bool { return h.SetLink != nil }},
	{name: "event/gid", run: eventGID, needs: func(_ Features, h Host) bool { return h.AddGID != nil }},
	{name: "event/device_gone", run: eventDeviceGone, needs: func(_ Features, h Host) bool {
		return h.RemoveDev != nil
	}},
}

// wantEvent waits for an event and ignores others.
func (b *bench) wantEvent(h Host, want hca.EventType, on hca.ObjectID) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), b.f.patience())
	defer cancel()
	for {
		ev, err := h.Dev.NextEvent(ctx)
		must(b, err, "wait for "+want.String())
		if ev.Type == want && (on == hca.ObjectID{} || ev.On == on) {
			return
		}
	}
}

func eventContext(b *bench) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := b.a.Dev.NextEvent(ctx)
	b.wantErr(err, context.Canceled, "next event")
}

// Close ends a blocked NextEvent.
func eventClose(b *bench) {
	done := make(chan error, 1)
	go func() {
		_, err := b.a.Dev.NextEvent(context.Background())
		done <- err
	}()
	must(b, b.a.Dev.Close(), "close device")
	if err := <-done; !errors.Is(err, hca.ErrClosed) {
		b.Errorf("next event: %v", err)
	}
	_, err := b.a.Dev.AllocPD()
	b.wantErr(err, hca.ErrClosed, "allocate PD")
}

// A link that goes down and up again is reported, and the QP then works.
func eventLink(b *bench) {
	x, y := b.pair()
	port := hca.ObjectID{Kind: hca.KindPort, Num: uint32(b.a.Port)}
	b.a.SetLink(false)
	b.wantEvent(b.a, hca.EventPortErr, port)
	b.wantPort(hca.PortDown)
	b.a.SetLink(true)
	b.wantEvent(b.a, hca.EventPortActive, port)
	b.wantPort(hca.PortActive)
	if x.state() == hca.QPErr {
		must(b, x.step(hca.QPErr, hca.QPReset), "to RESET")
		x.to(hca.QPRTS)
	}
	y.postRecv(1)
	x.probe(y, "up again")
}

func (b *bench) wantPort(want hca.PortState) {
	b.Helper()
	p, err := b.a.Dev.QueryPort(b.a.Port)
	must(b, err, "query port")
	if p.State != want {
		b.Errorf("port %v, want %v", p.State, want)
	}
}

// A new address is reported; the old one keeps its index.
func eventGID(b *bench) {
	before, err := b.a.Dev.QueryPort(b.a.Port)
	must(b, err, "query port")
	b.a.AddGID()
	b.wantEvent(b.a, hca.EventGIDChange, hca.ObjectID{Kind: hca.KindPort, Num: uint32(b.a.Port)})
	after, err := b.a.Dev.QueryPort(b.a.Port)
	must(b, err, "query port")
	if after.GIDs[b.a.SGIDIndex] != before.GIDs[b.a.SGIDIndex] {
		b.Errorf("GID %+v became %+v", before.GIDs[b.a.SGIDIndex], after.GIDs[b.a.SGIDIndex])
	}
}

// When the device is gone, posts and verbs that allocate or query fail, and releases do
// not.
func eventDeviceGone(b *bench) {
	x, y := b.pair()
	wr := x.wr(1, y, x.message(0, []byte("x")))
	b.a.RemoveDev()
	b.wantEvent(b.a, hca.EventDeviceFatal, hca.ObjectID{})
	_, err := x.qp.PostSend([]hca.SendWR{wr})
	b.wantErr(err, hca.ErrIO, "post send")
	_, err = x.qp.PostRecv([]hca.RecvWR{x.recvWR(0)})
	b.wantErr(err, hca.ErrIO, "post receive")
	_, err = b.a.Dev.AllocPD()
	b.wantErr(err, hca.ErrIO, "allocate PD")
	_, err = b.a.Dev.CreateCQ(hca.CQSpec{Entries: 1})
	b.wantErr(err, hca.ErrIO, "create CQ")
	_, err = x.pd.AllocMR(1, 0)
	b.wantErr(err, hca.ErrIO, "allocate MR")
	_, err = x.pd.CreateAH(wr.UD.AH.Spec())
	b.wantErr(err, hca.ErrIO, "create AH")
	_, err = b.a.Dev.QueryPort(b.a.Port)
	b.wantErr(err, hca.ErrIO, "query port")
}
