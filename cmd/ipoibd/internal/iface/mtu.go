package iface

import (
	"cmp"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

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
		h.log.Warn("requested MTU is too large for the path to a peer; using a smaller one",
			"requested", tooLarge, "mtu", mtu, "peer", path.To, "path_mtu", path.MTU)
	default:
		h.log.Warn(fmt.Sprintf("requested MTU is too large for the underlay, or above the limit of IPoIB (4092); "+
			"using %d", mtu), "requested", tooLarge, "mtu", mtu)
	}
	longest := mtu
	if !h.narrow.until.IsZero() {
		longest = min(mtu, h.narrow.to)
	}
	for _, l := range h.lanes.all {
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
	was, mtu := h.mtuReport, h.now.MTU
	r := mtuReport{below: mtu < link.MinIPv6MTU}
	if h.plan.Path.To.IsValid() && mtu >= h.plan.MTU() {
		r.path = h.plan.Path
	}
	if !h.plan.Fits(mtu) {
		r.exceeded = h.plan.Path
	}
	if r.below && !was.below {
		h.log.Warn("MTU below 1280: the kernel has removed all IPv6 addresses of the interface", "mtu", mtu)
	}
	if r.exceeded != was.exceeded && r.exceeded.To.IsValid() {
		h.log.Warn("the path to a peer carries less than the interface's MTU, according to a router, whose report may "+
			"be forged, so large packets may be lost; if 'ipoibd ping --sweep' confirms it, lower the MTU to what "+
			"fits, or raise that of the path",
			"mtu", mtu, "fits", r.exceeded.Carries-ipoib.HeaderLen, "peer", r.exceeded.To, "path_mtu", r.exceeded.MTU)
	}
	h.mtuReport = r
}

// refused handles a packet of size bytes that the port has refused as too long (LOC_LEN_ERR): it
// has a smaller MTU than the plan says. Others of that length would fail as well, and each failure
// costs a recovery, so they are dropped until the plan has changed, or for a while.
func (h *host) refused(size int) {
	const smallest = 256 - ipoib.HeaderLen // each port carries this much (IBA 1.4, table 43)
	n := &h.narrow
	size = min(size, h.now.MTU) // the size of a large packet is the sum of its segments
	fits := max(size-1, smallest)
	if n.until.IsZero() {
		n.pause = qprecovery.BackOff(n.pause, narrowFirst, narrowLast)
	} else {
		fits = min(fits, n.to) // one that was posted before a shorter one was refused
	}
	n.until, n.to = time.Now().Add(n.pause), fits
	for _, l := range h.lanes.all {
		l.tx.SetMTU(fits, h.plan.ReceiveMTU())
	}
}

// link returns what a notice may be about.
func (r *mtuReport) link() diagnose.Link {
	return diagnose.Link{BelowIPv6: r.below, Exceeded: r.exceeded, Fits: r.exceeded.Carries - ipoib.HeaderLen}
}

// MTUState decides the interface's MTU. It keeps the operator's request while the underlay is
// too small for it.
type MTUState struct {
	Set   int  `json:"set"`   // the MTU that the daemon has set, 0: none yet
	Wish  int  `json:"wish"`  // the requested MTU, 0: the largest that fits
	Fresh bool `json:"fresh"` // Wish was found on the interface and not compared yet with what fits
	Cut   int  `json:"cut"`   // the request that was reported as too large, 0: none
}

// mtuReport is what the operator should know about the MTU.
type mtuReport struct {
	path     hca.PathLimit // that determines the MTU; zero: none
	exceeded hca.PathLimit // that carries less than the MTU; zero: none
	below    bool          // the MTU is too small for IPv6
}

// found records the MTU of the interface at the start. The operator requested the MTU of an
// adopted interface, unless one is configured (0: none), but not the MTU of a new one.
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
