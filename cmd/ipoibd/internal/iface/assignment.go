package iface

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/link"
	"ipoibd/ud/ipoib"
)

// assignment is what the configuration gives the host: the addresses and routes of ib0, and
// whether ib0 is set up at the start.
type assignment struct {
	want   link.Assignment
	raise  bool       // ib0 is to be set up
	rising bool       // and has not been up yet
	last   conditions // of the last attempt
	retry  backoff    // after an attempt that failed
	err    error      // of the last attempt; nil: it succeeded
	warned string     // the error that the log has; empty: none since the last success
}

// conditions are those under which the kernel keeps, or takes, addresses and routes. When ib0
// goes down the kernel removes its routes and IPv6 addresses, and below an MTU of 1280 all of
// IPv6. It may refuse an IPv6 route while there is no carrier.
type conditions struct {
	up, carrier, ipv6 bool
	downs             uint64
}

// assignmentOf returns what a configuration assigns.
func assignmentOf(cfg config.Interface) (a link.Assignment, err error) {
	for _, s := range cfg.Addresses {
		p, e := config.ParseAddress(s)
		a.Addrs, err = append(a.Addrs, p), errors.Join(err, e)
	}
	for _, s := range cfg.Routes {
		to, via, e := config.ParseRoute(s)
		a.Routes, err = append(a.Routes, link.Route{To: to, Via: via}), errors.Join(err, e)
	}
	a.LinkLocalOfMAC = cfg.SourceCheck
	return a, err
}

// bringUp says whether ib0 is to be set up at the start.
func (a *assignment) bringUp(on bool) { a.raise, a.rising = on, on }

// due reports whether to assign in a state, and notes its conditions. first: it is the first state.
// Without addresses and routes, assigning is due only then, and only for an adopted ib0, for which an
// earlier configuration may have assigned some. An attempt that failed is repeated in any case.
func (a *assignment) due(st link.State, first, adopted bool) bool {
	now := conditions{st.Up, st.Carrier, st.MTU >= link.MinIPv6MTU, st.Downs}
	changed := first || now != a.last
	a.last = now
	return changed && (len(a.want.Addrs)+len(a.want.Routes) > 0 || a.want.LinkLocalOfMAC || first && adopted)
}

// assign has the worker assign addresses and routes, and at the start set ib0 up.
func (h *host) assign(first bool) {
	a := &h.assignment
	a.raise, a.rising = a.raise && !h.now.Up, a.rising && !h.now.Up
	if a.due(h.now, first, h.adopted || h.rebuilt) || first && a.raise {
		h.carryOut(func(error) {})
	}
}

// carryOut applies the assignment on the worker and passes the result to then.
func (h *host) carryOut(then func(error)) {
	want, raise := h.assignment.want, h.assignment.raise
	h.worker.do(func() func() {
		err, down := h.tap.Assign(want), error(nil)
		if raise {
			down = h.tap.BringUp()
		}
		return func() {
			h.assigned(err, down, time.Now())
			then(errors.Join(err, down))
		}
	})
}

// assigned handles the errors of an attempt: of the addresses and routes, and of setting ib0 up. The
// status shows them. They are logged once; without a carrier, errors of addresses and routes only for
// debugging, since a carrier brings another attempt. The reason may also go without an event, so an
// attempt that failed is repeated after a pause.
func (h *host) assigned(err, down error, now time.Time) {
	a := &h.assignment
	a.raise = a.raise && down != nil
	err = errors.Join(err, down)
	if errors.Is(err, link.ErrGone) || errors.Is(err, link.ErrClosed) {
		return // Run reports it
	}
	a.err = err
	if err == nil {
		a.warned = ""
		a.retry = backoff{}
		return
	}
	a.retry.fail(now)
	const text = "cannot configure the interface as requested; retrying"
	switch {
	case down == nil && !h.now.Carrier:
		h.log.Debug(text, "err", err)
	case err.Error() != a.warned:
		a.warned = err.Error()
		h.log.Warn(text, "err", err)
	}
}

// sources returns the IP addresses that the host may use: the configured ones and the link-local one of its MAC,
// which no other interface has; nil: any. The daemon has the kernel use that one ([link.Assignment]), and restores
// the MAC when someone changes it. Another link-local address could belong to any host or router.
func (h *host) sources() (list []netip.Addr) {
	if !h.assignment.want.LinkLocalOfMAC {
		return nil
	}
	for _, p := range h.assignment.want.Addrs {
		list = append(list, p.Addr())
	}
	return append(list, ipoib.MAC(h.now.MAC).LinkLocal())
}

// checkSources makes the lanes drop the host's frames from other addresses.
func (h *host) checkSources() {
	h.lanes.allowSources(h.sources())
}

// ownAddrs returns the addresses of ib0 and its master that the host may use: the table announces them.
func (h *host) ownAddrs() []netip.Prefix {
	list := h.sources()
	return slices.DeleteFunc(h.now.SelfAddrs(), func(p netip.Prefix) bool {
		return list != nil && !slices.Contains(list, p.Addr())
	})
}
