package device

import (
	"cmp"
	"fmt"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// ports are the ports of the session.
type ports struct {
	attrs     []hca.PortAttr
	families  map[int]string // of the GID that each port had last, by its index
	unqueried *Session       // whose latest query of the ports failed, not because of the device; nil: none
}

// set sets the ports. It returns a note for each port whose GID has another IP family: hosts
// whose GIDs are of the former one cannot be reached.
func (p *ports) set(attrs []hca.PortAttr, netdev string) (notes []string) {
	p.attrs = attrs
	for i, attr := range attrs {
		plan, err := port.MakePlan(attr, port.Want{Port: uint8(i + 1), PKey: hca.PKeyDefault})
		if err != nil {
			continue // it has no GID now
		}
		is, was := "IPv6", p.families[i]
		if plan.GID.Addr().Is4() {
			is = "IPv4"
		}
		p.families[i] = is
		if was != "" && was != is {
			notes = append(notes, fmt.Sprintf(
				"the GID of port %d was %s and is now %s (%s): only hosts with %s GIDs can be reached; "+
					"if that is not intended, change the IP addresses of %s",
				i+1, was, is, plan.GID.Addr(), is, cmp.Or(netdev, "its netdev")))
		}
	}
	return notes
}

func queryPorts(s *Session) ([]hca.PortAttr, error) {
	ports := make([]hca.PortAttr, s.Attr().Ports)
	for i := range ports {
		var err error
		if ports[i], err = s.QueryPort(uint8(i + 1)); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// check queries the ports through the open session, whether or not it has users (R8), and publishes
// them. The query may take long, since it may wait for a lock of the host (guard.Options).
func (o *owner) check(gen uint32) {
	s := o.session
	if s.Attr().NeverBlocks { // no other thread has to run, so an idle daemon rests
		ports, err := queryPorts(s)
		o.checked(s, gen, ports, err)
		return
	}
	o.work.Go(func() {
		ports, err := queryPorts(s)
		o.tell(func(o *owner) { o.checked(s, gen, ports, err) })
	})
}

// checked handles the result of a check.
func (o *owner) checked(s *Session, gen uint32, ports []hca.PortAttr, err error) {
	class := qprecovery.OfVerbError(qprecovery.VerbQueryPort, err)
	switch {
	case class.OfDevice():
		o.log.Error("cannot query the ports; recovering the device", "err", err)
	case err != nil && o.ports.unqueried != s:
		o.ports.unqueried = s
		o.log.Warn("cannot query the ports; retrying", "err", err)
	case err == nil && o.session == s:
		o.ports.unqueried = nil
		s.subnets.see(ports)
		o.note(o.ports.set(ports, o.cfg.Underlay)...)
	}
	o.step(qprecovery.Checked{Gen: gen, Class: class})
}
