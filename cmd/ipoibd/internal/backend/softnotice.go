package backend

import (
	"log/slog"
	"net/netip"
	"time"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
)

const (
	// lookEvery is the interval at which the counters and reports of a software HCA are read.
	lookEvery = diagnose.RefusedFor / 2
	// lookFirst is how long the first look at an open device may wait.
	lookFirst = time.Second
)

// watch looks for what keeps an open software HCA from reaching its peers, and logs it.
type watch struct {
	log        *slog.Logger
	engine     *engine // that was looked at last
	duplicates duplicates
	judge      diagnose.Watch
}

// look returns the notices about the instance that was opened last, which is on a netdev.
func (w *watch) look(now time.Time, e *engine, netdev string) report.Notices {
	if w.engine != e {
		w.engine = e
		w.judge.Opened()
		w.duplicates.open(netdev)
	}
	port, err := e.dev.QueryPort(1)
	if err != nil {
		return nil // it is closed, or has failed
	}
	shown := e.shown()
	var addrs []netip.Addr
	for _, g := range port.GIDs {
		addrs = append(addrs, g.GID.Addr().Unmap())
	}
	shown.Duplicate = w.duplicates.look(now, addrs)
	notices, complaints := w.judge.Look(now, shown)
	for _, c := range complaints {
		w.log.Warn(c.Message, c.Args...)
	}
	return notices
}

// shown returns what the device shows by itself.
func (e *engine) shown() (h diagnose.SoftHCA) {
	for _, c := range e.dev.Counters() {
		switch c.Name {
		case docs.DeviceTxPackets:
			h.Sent = c.Value
		case docs.DeviceRxPackets:
			h.Heard = c.Value
		case docs.DeviceWireTxDropForbidden:
			h.Refused = c.Value
		case docs.DeviceNATSuspected:
			h.NATs = c.Value
		}
	}
	if seen, sender, suspected := e.dev.NATSuspect(); suspected {
		h.From, h.ICRCOf = seen, sender
	}
	if size, needed, err := e.lanes[0].SendBuf(); err == nil {
		h.SendBuffer, h.Needed = size, needed
	}
	for _, lane := range e.lanes {
		if h.NoTrains = lane.TrainsRefused(); h.NoTrains != nil {
			break
		}
	}
	h.OneSocket = e.lanes[0].LanesRefused()
	return h
}
