package soft

import (
	"fmt"

	"ipoibd/hca"
)

// AH is an address handle.
type AH struct {
	pd     *PD
	spec   hca.AHSpec
	closed bool // guarded by Device.mu
}

var _ hca.AH = (*AH)(nil)

// CreateAH implements [hca.PD]. It resolves nothing and does not block: the
// kernel resolves the neighbour when the first packet is sent.
func (p *PD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	if err := p.lockUsable(); err != nil {
		return nil, verb("create_ah", spec.DGID.String(), err)
	}
	defer p.dev.mu.Unlock()
	if err := p.dev.slow.port.checkAH(&spec); err != nil {
		return nil, verb("create_ah", spec.DGID.String(), err)
	}
	p.children++
	p.dev.use(spec.DGID.Addr(), 1)
	return &AH{pd: p, spec: spec}, nil
}

// checkAH refuses an address that RoCEv2 or this port does not support.
func (p *port) checkAH(s *hca.AHSpec) error {
	const maxFlowLabel = 1<<20 - 1
	switch {
	case s.Port != 1 || !s.Global || s.DGID.IsZero() || s.SL > 15 || s.FlowLabel > maxFlowLabel:
		return hca.ErrInvalid
	case s.SGIDIndex < 0 || s.SGIDIndex >= len(p.gids):
		return fmt.Errorf("%w: no GID at index %d", hca.ErrInvalid, s.SGIDIndex)
	}
	if src := p.gids[s.SGIDIndex].Addr; !src.IsValid() || src.Is4() != s.DGID.Addr().Is4() {
		return fmt.Errorf("%w: source GID %v", hca.ErrInvalid, src)
	}
	return nil
}

// Spec implements [hca.AH].
func (a *AH) Spec() hca.AHSpec { return a.spec }

// Close implements [hca.AH].
func (a *AH) Close() error {
	a.pd.dev.mu.Lock()
	defer a.pd.dev.mu.Unlock()
	if !a.closed {
		a.closed = true
		a.pd.children--
		a.pd.dev.use(a.spec.DGID.Addr(), -1)
	}
	return nil
}
