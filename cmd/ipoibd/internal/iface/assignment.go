package iface

import (
	"errors"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/link"
)

// assignment is what the configuration gives the host: the addresses and routes of ib0, and
// whether ib0 is set up at the start.
type assignment struct {
	want   link.Assignment
	up     bool
	last   conditions // of the last attempt
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

func newAssignment(cfg config.Interface) (a assignment, err error) {
	a.up = cfg.Up
	for _, s := range cfg.Addresses {
		p, e := config.ParseAddress(s)
		a.want.Addrs, err = append(a.want.Addrs, p), errors.Join(err, e)
	}
	for _, s := range cfg.Routes {
		to, via, e := config.ParseRoute(s)
		a.want.Routes, err = append(a.want.Routes, link.Route{To: to, Via: via}), errors.Join(err, e)
	}
	return a, err
}

// due reports whether to assign in a state, and notes its conditions. first: it is the first state.
// Without addresses and routes, assigning is due only then, and only for an adopted ib0: an earlier
// configuration may have assigned some.
func (a *assignment) due(st link.State, first, adopted bool) bool {
	now := conditions{st.Up, st.Carrier, st.MTU >= minIPv6MTU, st.Downs}
	changed := first || now != a.last
	a.last = now
	return changed && (len(a.want.Addrs)+len(a.want.Routes) > 0 || first && adopted)
}

// assign has the worker assign addresses and routes, and at the start set ib0 up.
func (h *host) assign(first bool) {
	a := &h.assignment
	bringUp := first && a.up && !h.now.Up
	if !a.due(h.now, first, h.adopted) && !bringUp {
		return
	}
	h.worker.do(func() func() {
		err := h.tap.Assign(a.want)
		if bringUp {
			err = errors.Join(err, h.tap.BringUp())
		}
		return func() { h.assigned(err) }
	})
}

// assigned handles the result of an attempt. The status shows an error. It is logged once; without a
// carrier only for debugging, since another attempt follows.
func (h *host) assigned(err error) {
	if errors.Is(err, link.ErrGone) || errors.Is(err, link.ErrClosed) {
		return // Run reports it
	}
	a := &h.assignment
	a.err = err
	const text = "cannot configure the interface as requested; trying again when it comes up, gets a carrier, or its MTU rises to 1280"
	switch {
	case err == nil:
		a.warned = ""
	case !h.now.Carrier:
		h.log.Debug(text, "err", err)
	case err.Error() != a.warned:
		a.warned = err.Error()
		h.log.Warn(text, "err", err)
	}
}
