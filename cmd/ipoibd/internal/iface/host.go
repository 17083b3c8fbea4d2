package iface

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"time"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
	"ipoibd/link/kernel/capsule"
	"ipoibd/ud/port"
)

const (
	// inspectEvery is how often ib0 is inspected even without an event. The kernel reports that
	// another process attaches or detaches, and does not report some changes that it makes meanwhile.
	inspectEvery = 5 * time.Second
	// inspectSoon is the same while another process has a queue, after an inspection that failed, and
	// for ib0 in a configured network namespace, with which it must be deleted.
	inspectSoon = time.Second
	// foreignGrace is how long another process may have a queue of ib0 before the
	// carrier is taken down. A starting daemon attaches one for about 100 us, sees
	// that ib0 is in use, and detaches.
	foreignGrace = 100 * time.Millisecond
)

// TAP is what an interface needs of its TAP.
type TAP interface {
	link.Device
	SetMTU(mtu int) error
	Assign(a link.Assignment) error
	BringUp() error
	Neighbours() ([]link.Neighbour, error)
	Unresolved() ([]netip.Addr, error)
	Groups() ([]netip.Addr, error)
	// Elsewhere reports whether ib0 was renamed or moved to another network namespace, so that Open
	// would not find it.
	Elsewhere() bool
	SetPrograms(p link.Programs) error
	ObserveWaits(queue int, onWait, onWake func())
	AttachEgress(program int) (index int, err error)
	Remove() error

	// For a process that continues ib0.
	Export(w *capsule.Writer)
	GiveUp()
	Own()
}

// host is the TAP side of the interface. It keeps the state of ib0, its MTU and its carrier
// as the daemon has set them.
type host struct {
	log        *slog.Logger
	tap        TAP
	lanes      *lanes
	adopted    bool // ib0 existed before
	rebuilt    bool // mtu is from the interface that this one replaces
	now        link.State
	mtu        MTUState
	sizing     int       // the MTU that the worker is setting; 0: none
	plan       port.Plan // for which the MTU was last fitted
	mtuReport  mtuReport
	monitor    monitor
	assignment assignment
	worker     worker      // calls the methods of the TAP that may block
	inspecting int         // inspections whose result was not taken yet
	asks       []time.Time // when to ask for the host's neighbours on its behalf
	narrow     narrow

	fastPath *bpf.FastPath // nil: none
}

// deadline returns when to call expire.
func (h *host) deadline() time.Time {
	return earliest(earliest(h.asks...), h.monitor.at, h.assignment.retry.at, h.narrow.until)
}

// expire does what is due. It reports whether to ask for the host's neighbours on its behalf.
func (h *host) expire(now time.Time) (ask bool) {
	if due(&h.monitor.at, now) {
		h.inspect()
	}
	if due(&h.assignment.retry.at, now) {
		h.carryOut(func(error) {})
	}
	if ask = len(h.asks) > 0 && due(&h.asks[0], now); ask {
		h.asks = h.asks[1:]
	}
	return ask
}

// side returns what the use of the device depends on.
func (h *host) side() (s hostSide) {
	s.present = h.now.Present
	if s.mac = h.now.MAC; !h.now.Away {
		s.netdev = h.now.Index
	}
	switch {
	case h.now.Up:
	case h.assignment.rising:
		s.down = errors.New("interface is down; setting it up")
	default:
		s.down = fmt.Errorf("interface is down; bring it up: %s", report.Command("ip link set %s up", h.now.Name))
	}
	return s
}

// changed records a state of ib0 that the kernel has reported. It may be older than the MTU and the carrier that
// the worker has set since, or is about to set. So an inspection, which comes after those settings, decides what
// is a request of the operator.
func (h *host) changed(st link.State, configuredMTU int) {
	old := h.now
	if old.Present {
		st.MAC = old.MAC // an inspection restores it
	}
	h.now = st
	h.inspect()
	h.assign(!old.Present)
	h.checkSources()
	switch {
	case !old.Present && !h.rebuilt:
		h.mtu.found(st.MTU, configuredMTU, h.adopted)
	case old.Present:
		h.now.MTU = old.MTU // until the inspection has found it
	}
}

// setCarrier has the worker raise or drop the carrier, which stays off as long as another process has a
// queue. It then reports the result.
func (h *host) setCarrier(on bool, then func(error)) {
	h.monitor.wantCarrier = on
	on = h.monitor.lit()
	h.worker.do(func() func() {
		err := h.tap.SetCarrier(on)
		return func() {
			if err == nil {
				h.carrierIs(on)
			}
			then(err)
		}
	})
}

// askTimes are the times, after the carrier was raised, at which the interface asks for the
// neighbours that the host waits for: at once and several times soon after, since the kernel
// takes a moment to notice the carrier and drops its own requests until then, and since a
// switch may start forwarding later than this host. Within a second the kernel itself asks
// again.
//
// The kernel forgot its neighbours when the carrier went down, and its requests since then
// were lost. Its next request may be a second away, which prolongs the outage; a TCP
// connection that sends in the meantime waits much longer.
var askTimes = [...]time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond, 600 * time.Millisecond}

// carrierIs records a carrier that was just set, before netlink reports it.
func (h *host) carrierIs(on bool) {
	h.now.Carrier = on && h.now.Up
	h.asks = nil
	for _, after := range askTimes {
		if on {
			h.asks = append(h.asks, time.Now().Add(after))
		}
	}
}

// attachFast attaches the program of the fast path to the TAP, or removes it.
func (h *host) attachFast() {
	program := -1
	if h.fastPath != nil {
		program = h.fastPath.AtNetdev
	}
	ask(&h.worker, func() (int, error) { return h.tap.AttachEgress(program) }, func(index int, err error) {
		switch {
		case err == nil && program >= 0:
			h.fastPath.Attached(index)
		case err != nil && !errors.Is(err, link.ErrAway) && !errors.Is(err, link.ErrGone):
			h.log.Warn("cannot attach the fast path to the interface; the daemon carries the host's frames", "err", err)
		}
	})
}

// monitor restores properties of ib0 that other processes change.
type monitor struct {
	every       time.Duration // between inspections, if nothing is wrong
	at          time.Time     // of the next inspection; zero: one is under way
	since       time.Time     // when another process was first seen with a queue; zero: none has one
	foreign     bool          // another process has had a queue for foreignGrace; the carrier is down
	wantCarrier bool          // the carrier is on unless foreign
	err         error         // of the last inspection; nil: it succeeded
}

// lit reports whether the daemon has the carrier on.
func (m *monitor) lit() bool { return m.wantCarrier && !m.foreign }

// saw records how many foreign queues an inspection has found, plans the next
// inspection, and reports whether foreign has changed.
func (m *monitor) saw(queues int, now time.Time) (changed bool) {
	m.at = now.Add(m.every - time.Duration(now.UnixNano())%m.every) // with the samples of lanes at rest
	was := m.foreign
	switch {
	case queues == 0:
		m.since, m.foreign = time.Time{}, false
	case m.since.IsZero():
		m.since, m.at = now, now.Add(foreignGrace)
	case now.Sub(m.since) < foreignGrace:
		m.at = m.since.Add(foreignGrace)
	default:
		m.foreign, m.at = true, now.Add(inspectSoon)
	}
	return m.foreign != was
}

// inspect has the worker inspect ib0, because netlink may block for as long as another
// process holds the kernel's lock of all interfaces. An inspection that waits for another one
// finds later changes too.
func (h *host) inspect() {
	h.monitor.at = time.Time{}
	if h.inspecting > 1 {
		return
	}
	h.inspecting++
	ask(&h.worker, h.tap.Inspect, func(found link.Findings, err error) {
		h.inspecting--
		h.inspected(found, err, time.Now())
	})
}

// inspected handles the findings of an inspection, which has restored what other processes
// have changed. While one of them has a queue, the carrier is down.
func (h *host) inspected(found link.Findings, err error, now time.Time) {
	m := &h.monitor
	for _, change := range found.Restored {
		h.log.Warn("another process has changed the interface; restored",
			"property", string(change.What), "found", change.Found)
		if change.What == link.PropertyCarrier {
			h.carrierIs(m.lit())
		}
	}
	// The status shows the error. It is logged if it differs from the previous one. Run
	// reports an interface that is gone.
	was := m.err
	if m.err = nil; err != nil && !errors.Is(err, link.ErrGone) && !errors.Is(err, link.ErrClosed) {
		m.err = fmt.Errorf("changes by other processes may remain: %w", err)
		if was == nil || was.Error() != m.err.Error() {
			h.log.Warn("cannot inspect the interface; retrying every second", "err", m.err)
		}
	}
	if err != nil {
		m.at = now.Add(inspectSoon)
		return
	}
	h.now.MTU, h.now.Carrier = found.MTU, found.Carrier
	h.mtu.changed(found.MTU)
	h.assign(false)
	if !m.saw(found.Foreign, now) {
		return
	}
	if m.foreign {
		h.log.Error("another process has attached to the interface; carrier taken down",
			"queues", found.Foreign, "err", h.foreignError())
	} else {
		h.log.Info("the other process has detached from the interface", "carrier", m.wantCarrier)
	}
	h.setCarrier(m.wantCarrier, func(err error) {
		if err != nil {
			h.log.Error("cannot change the carrier", "err", err)
		}
	})
}

// foreignError explains why ib0 has no carrier while another process has a queue;
// otherwise it returns nil. The kernel does not report whose queue it is, but /proc does.
func (h *host) foreignError() error {
	if !h.monitor.foreign {
		return nil
	}
	// A container may have renamed ib0: the name must mean nothing to a shell, and match
	// itself as a regular expression.
	name := regexp.MustCompile(`\W`).ReplaceAllLiteralString(h.now.Name, ".")
	return fmt.Errorf("another process has attached to the interface and receives some of its frames: stop it "+
		"(`grep -lsx iff:.%s /proc/[0-9]*/fdinfo/*` lists it, and this daemon, process %d)", name, os.Getpid())
}
