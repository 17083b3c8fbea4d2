package iface

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
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
	Remove() error
}

// TAPQueue is one queue of a TAP.
type TAPQueue interface {
	ud.Source
	ud.Sink
}

// MultiQueue is a [TAP] with several queues. Each queue gets a lane.
type MultiQueue interface {
	// Queues returns all queues, at least one; their number does not change. The kernel
	// spreads the host's frames over them.
	Queues() []TAPQueue
}

// host is the TAP side of the interface. It keeps the state of ib0, its MTU and its carrier
// as the daemon has set them.
type host struct {
	log        *slog.Logger
	tap        TAP
	lanes      lanes
	adopted    bool // ib0 existed before
	rebuilt    bool // mtu is that of the interface in whose place this one is
	now        link.State
	mtu        MTUState
	sizing     int       // the MTU that the worker is setting; 0: none
	plan       port.Plan // for which the MTU was last fitted
	mtuReport  mtuReport
	custody    custody
	assignment assignment
	worker     worker      // calls the methods of the TAP that may block
	inspecting int         // inspections whose result was not taken yet
	asks       []time.Time // when to ask for the host's neighbours on its behalf
	narrow     narrow
}

// narrow is the limit while the port has a smaller MTU than its plan says. A port applies a smaller MTU at once,
// and the daemon learns of it some milliseconds later, or when another process releases the kernel's rtnl lock.
type narrow struct {
	until time.Time     // zero: there is no limit
	to    int           // bytes of the longest frame that is sent
	pause time.Duration // from one attempt to send longer frames to the next
}

// narrowFirst and narrowLast bound narrow.pause, which doubles.
const (
	narrowFirst = 100 * time.Millisecond
	narrowLast  = time.Minute
)

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
	switch {
	case !old.Present && !h.rebuilt:
		h.mtu.found(st.MTU, configuredMTU, h.adopted)
	case old.Present:
		h.now.MTU = old.MTU
	}
}

// alone reports whether only the host itself uses the interface, so that no other MAC is
// expected behind it: a bridge port has a master, and the interface below a macvlan or a
// guest has no address.
func alone(st link.State) bool {
	own := func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() }
	return st.Master == 0 && slices.ContainsFunc(st.Addrs, own)
}

// setCarrier has the worker raise or drop the carrier, which stays off as long as another process has a
// queue. It then reports the result.
func (h *host) setCarrier(on bool, then func(error)) {
	h.custody.wantCarrier = on
	on = h.custody.lit()
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

// fitMTU has the worker set the MTU that the plan and the operator allow. The lanes apply it at once.
func (h *host) fitMTU(plan port.Plan) {
	if !plan.Equal(h.plan) {
		h.narrow, h.plan = narrow{}, plan
	}
	largest, path := plan.MTU(), plan.Path
	mtu, tooLarge := h.mtu.fit(largest)
	switch {
	case tooLarge == 0:
	case path.To.IsValid() && tooLarge <= plan.ReceiveMTU():
		h.log.Warn("requested MTU is too large for the path to a peer; using a smaller one", "requested", tooLarge, "mtu", mtu, "peer", path.To, "path_mtu", path.MTU)
	default:
		h.log.Warn(fmt.Sprintf("requested MTU is too large for the underlay, or above the limit of IPoIB (4092); using %d", mtu), "requested", tooLarge, "mtu", mtu)
	}
	longest := mtu
	if !h.narrow.until.IsZero() {
		longest = min(mtu, h.narrow.to)
	}
	for _, l := range h.lanes {
		l.tx.SetMTU(longest, plan.ReceiveMTU())
		l.rx.SetMTU(plan.ReceiveMTU())
	}
	switch {
	case mtu != h.mtuSoon():
		h.setMTU(mtu)
	case h.sizing == 0:
		h.reportMTU()
	}
}

// mtuSoon returns the MTU of ib0 after the change that is under way.
func (h *host) mtuSoon() int { return cmp.Or(h.sizing, h.now.MTU) }

// setMTU has the worker set the MTU of ib0, which waits for as long as another process holds the
// kernel's lock of all interfaces.
func (h *host) setMTU(mtu int) {
	h.sizing = mtu
	h.worker.do(func() func() {
		err := h.tap.SetMTU(mtu)
		return func() {
			if h.sizing == mtu {
				h.sizing = 0
			}
			if err != nil {
				h.log.Error("cannot set MTU", "mtu", mtu, "err", err)
			} else {
				args := []any{"mtu", mtu, "was", h.now.MTU, "largest", h.plan.MTU()}
				if path := h.plan.Path; path.To.IsValid() {
					args = append(args, "peer", path.To, "path_mtu", path.MTU)
				}
				h.log.Info("MTU set", args...)
				h.now.MTU, h.mtu.Set = mtu, mtu
			}
			h.reportMTU()
		}
	})
}

// reportMTU updates the report about the MTU, and warns about traffic that is lost from now on.
func (h *host) reportMTU() {
	was := h.mtuReport
	h.mtuReport = reportMTU(h.plan, h.now.MTU)
	h.mtuReport.log(h.log, h.now.MTU, was)
}

// refused handles a packet of size bytes that the port has refused as too long (LOC_LEN_ERR): it
// has a smaller MTU than the plan says. Others of that length would fail as well, and each failure
// costs a recovery, so they are dropped until the plan has changed, or for a while.
func (h *host) refused(size int) {
	const smallest = 256 - ipoib.HeaderLen // each port carries that (IBA 1.4, table 43)
	n := &h.narrow
	size = min(size, h.now.MTU) // that of a large packet is the sum of its segments
	fits := max(size-1, smallest)
	if n.until.IsZero() {
		n.pause = qprecovery.BackOff(n.pause, narrowFirst, narrowLast)
	} else {
		fits = min(fits, n.to) // one that was posted before a shorter one was refused
	}
	n.until, n.to = time.Now().Add(n.pause), fits
	for _, l := range h.lanes {
		l.tx.SetMTU(fits, h.plan.ReceiveMTU())
	}
}

// reportMTU returns the report about an interface with an MTU.
func reportMTU(plan port.Plan, mtu int) (r mtuReport) {
	r.below = mtu < minIPv6MTU
	if plan.Path.To.IsValid() && mtu >= plan.MTU() {
		r.path = plan.Path
	}
	if !plan.Fits(mtu) {
		r.exceeded = plan.Path
	}
	return r
}

// log warns about traffic that is lost, when that begins.
func (r *mtuReport) log(log *slog.Logger, mtu int, was mtuReport) {
	if r.below && !was.below {
		log.Warn("MTU below 1280: the kernel has removed all IPv6 addresses of the interface", "mtu", mtu)
	}
	if r.exceeded != was.exceeded && r.exceeded.To.IsValid() {
		log.Warn("the path to a peer carries less than the interface's MTU, according to a router, whose report may be forged, so large packets may be lost; if 'ipoibd ping --sweep' confirms it, lower the MTU to what fits, or raise that of the path",
			"mtu", mtu, "fits", r.exceeded.Carries-ipoib.HeaderLen, "peer", r.exceeded.To, "path_mtu", r.exceeded.MTU)
	}
}

// notices describes what is lost, for the status.
func (r *mtuReport) notices() report.Notices {
	notices := report.Notices{}
	if r.below {
		notices.Add(report.NoticeNoIPv6, "MTU below 1280: the interface cannot have IPv6 addresses")
	}
	if r.exceeded.To.IsValid() {
		fits := r.exceeded.Carries - ipoib.HeaderLen
		notices.Add(report.NoticePathMTU, fmt.Sprintf("the path to %s has an MTU of %d, according to a router, whose report may be forged, so packets of more than %d bytes may be lost: if 'ipoibd ping --sweep' to the peer confirms it, set the MTU of the interface to %d, or raise that of the path",
			r.exceeded.To, r.exceeded.MTU, fits, fits))
	}
	return notices
}

const minIPv6MTU = 1280 // RFC 8200, section 5

// MTUState decides the interface's MTU. It keeps the operator's request while the underlay is
// too small for it.
type MTUState struct {
	Set   int  // the MTU that the daemon has set, 0: none yet
	Wish  int  // the requested MTU, 0: the largest that fits
	Fresh bool // Wish was found on the interface and not compared yet with what fits
	Cut   int  // the request that was reported as too large, 0: none
}

// mtuReport is what the operator should know about the MTU.
type mtuReport struct {
	path     hca.PathLimit // that determines the MTU; zero: none
	exceeded hca.PathLimit // that carries less than the MTU; zero: none
	below    bool          // the MTU is below that of IPv6
}

// found records the MTU of the interface at the start. The operator requested the MTU of an
// adopted interface, unless one is configured (0: none), but not that of a new one.
func (s *MTUState) found(mtu, configured int, adopted bool) {
	*s = MTUState{Set: mtu, Wish: configured}
	if adopted && configured == 0 {
		s.Wish, s.Fresh, s.Cut = mtu, true, mtu
	}
}

// configure records another MTU of the configuration; 0: the largest that fits.
func (s *MTUState) configure(mtu int) { s.Wish, s.Fresh, s.Cut = mtu, false, 0 }

// changed records a new MTU of the interface. If the daemon has not set it, it is a request of
// the operator.
func (s *MTUState) changed(mtu int) {
	if mtu != s.Set {
		s.Set, s.Wish, s.Fresh = mtu, mtu, true
	}
}

// fit returns the MTU that the interface should have, and, once per request, a request that
// is too large. An operator who has asked for the largest MTU or more gets the largest, even
// after it changes.
func (s *MTUState) fit(largest int) (mtu, tooLarge int) {
	if s.Wish <= largest {
		s.Cut = 0
	} else if s.Wish != s.Cut {
		s.Cut, tooLarge = s.Wish, s.Wish
	}
	if s.Fresh && s.Wish >= largest {
		s.Wish = 0
	}
	s.Fresh = false
	return s.wanted(largest), tooLarge
}

// wanted returns the MTU that the interface would have if the paths carried as much as the port.
func (s *MTUState) wanted(largest int) int {
	if s.Wish == 0 {
		return largest
	}
	return min(s.Wish, largest)
}

// custody keeps ib0 as this daemon has set it up, despite what other processes do to it.
type custody struct {
	every       time.Duration // between inspections, if nothing is wrong
	at          time.Time     // of the next inspection; zero: one is under way
	since       time.Time     // when another process was first seen with a queue; zero: none has one
	foreign     bool          // another process has had a queue for foreignGrace; the carrier is down
	wantCarrier bool          // the carrier is on unless foreign
	err         error         // of the last inspection; nil: it succeeded
}

// lit reports whether the daemon has the carrier on.
func (c *custody) lit() bool { return c.wantCarrier && !c.foreign }

// saw records how many foreign queues an inspection has found, plans the next
// inspection, and reports whether foreign has changed.
func (c *custody) saw(queues int, now time.Time) (changed bool) {
	c.at = now.Add(c.every - time.Duration(now.UnixNano())%c.every) // with the samples of lanes at rest
	was := c.foreign
	switch {
	case queues == 0:
		c.since, c.foreign = time.Time{}, false
	case c.since.IsZero():
		c.since, c.at = now, now.Add(foreignGrace)
	case now.Sub(c.since) < foreignGrace:
		c.at = c.since.Add(foreignGrace)
	default:
		c.foreign, c.at = true, now.Add(inspectSoon)
	}
	return c.foreign != was
}

// inspect has the worker inspect ib0, because netlink may block for as long as another
// process holds the kernel's lock of all interfaces. An inspection that waits for another one
// finds later changes too.
func (h *host) inspect() {
	h.custody.at = time.Time{}
	if h.inspecting > 1 {
		return
	}
	h.inspecting++
	h.worker.do(func() func() {
		found, err := h.tap.Inspect()
		return func() {
			h.inspecting--
			h.inspected(found, err, time.Now())
		}
	})
}

// inspected handles the findings of an inspection, which has restored what other processes
// have changed. While one of them has a queue, the carrier is down.
func (h *host) inspected(found link.Findings, err error, now time.Time) {
	c := &h.custody
	for _, change := range found.Restored {
		h.log.Warn("another process has changed the interface; restored", "property", string(change.What), "found", change.Found)
		if change.What == link.PropertyCarrier {
			h.carrierIs(c.lit())
		}
	}
	// The status shows the error. It is logged if it differs from the previous one. Run
	// reports an interface that is gone.
	was := c.err
	if c.err = nil; err != nil && !errors.Is(err, link.ErrGone) && !errors.Is(err, link.ErrClosed) {
		c.err = fmt.Errorf("changes by other processes may remain: %w", err)
		if was == nil || was.Error() != c.err.Error() {
			h.log.Warn("cannot inspect the interface; trying again every second", "err", c.err)
		}
	}
	if err != nil {
		c.at = now.Add(inspectSoon)
		return
	}
	h.now.MTU, h.now.Carrier = found.MTU, found.Carrier
	h.mtu.changed(found.MTU)
	h.assign(false)
	if !c.saw(found.Foreign, now) {
		return
	}
	if c.foreign {
		h.log.Error("another process has attached to the interface; carrier taken down", "queues", found.Foreign, "err", h.foreignError())
	} else {
		h.log.Info("the other process has detached from the interface", "carrier", c.wantCarrier)
	}
	h.setCarrier(c.wantCarrier, func(err error) {
		if err != nil {
			h.log.Error("cannot change the carrier", "err", err)
		}
	})
}

// foreignError explains why ib0 has no carrier while another process has a queue;
// otherwise it returns nil. The kernel does not report whose queue it is, but /proc does.
func (h *host) foreignError() error {
	if !h.custody.foreign {
		return nil
	}
	// A container may have renamed ib0: the name must mean nothing to a shell, and match
	// itself as a regular expression.
	name := regexp.MustCompile(`\W`).ReplaceAllLiteralString(h.now.Name, ".")
	return fmt.Errorf("another process has attached to the interface and receives some of its frames: stop it "+
		"(`grep -lsx iff:.%s /proc/[0-9]*/fdinfo/*` lists it, and this daemon, process %d)", name, os.Getpid())
}
