package memsubnet

import "ipoibd/hca"

// PD is a protection domain.
type PD struct {
	hca.PD
	dev *Device
}

// AH is an address handle on InfiniBand. Below it is one of the software HCA that leads nowhere, a child of the
// domain. Each send gets another one.
type AH struct {
	hca.AH
	pd   *PD
	spec hca.AHSpec
}

// CreateAH implements [hca.PD].
func (p *PD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	if !p.dev.port.valid(&spec) {
		return nil, &hca.VerbError{Verb: "create_ah", On: spec.DGID.String(), Err: hca.ErrInvalid}
	}
	inner, err := p.PD.CreateAH(onFabric(nowhere))
	if err != nil {
		return nil, err
	}
	return &AH{AH: inner, pd: p, spec: spec}, nil
}

// valid reports whether the data of a handle are possible on InfiniBand. A message to a group always has a
// GRH, and an MLID.
func (p *Port) valid(a *hca.AHSpec) bool {
	p.subnet.mu.Lock()
	defer p.subnet.mu.Unlock()
	const maxSL, maxFlowLabel = 15, 1<<20 - 1
	toGroup := a.Global && a.DGID.IsMulticast()
	switch {
	case a.Port != 1 || a.SL > maxSL || a.DLID == 0 || a.DLID > lastMLID || isMLID(a.DLID) != toGroup:
		return false
	case a.Global:
		return a.SGIDIndex >= 0 && p.hasGID(a.SGIDIndex) && !a.DGID.IsZero() && a.FlowLabel <= maxFlowLabel
	}
	return true
}

// Spec implements [hca.AH].
func (a *AH) Spec() hca.AHSpec { return a.spec }

// MR is registered memory.
type MR struct {
	hca.MR
	dev  *Device
	base hca.SGE // of its first byte
}

// AllocMR implements [hca.PD].
func (p *PD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	inner, err := p.PD.AllocMR(size, access)
	if err != nil {
		return nil, err
	}
	m := &MR{MR: inner, dev: p.dev, base: inner.SGE(0, 1)}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	p.dev.mrs[m.base.LKey] = m
	return m, nil
}

// Close implements [hca.MR].
func (m *MR) Close() error {
	m.dev.mu.Lock()
	delete(m.dev.mrs, m.base.LKey)
	m.dev.mu.Unlock()
	return m.MR.Close()
}

// visit calls f with the pieces of memory that hold the first n bytes of a receive. Device.mu is held, so
// that the memory stays.
func (d *Device) visit(list []hca.SGE, n int, f func(at int, piece []byte)) {
	for at, i := 0, 0; at < n && i < len(list); i++ {
		e := list[i]
		m := d.mrs[e.LKey]
		if m == nil {
			return // the receive was dropped
		}
		off := int(e.Addr - m.base.Addr)
		piece := m.Bytes()[off : off+int(e.Length)]
		f(at, piece[:min(len(piece), n-at)])
		at += len(piece)
	}
}
