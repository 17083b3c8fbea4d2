package doctor

import (
	"fmt"
	"net/netip"
	"strings"

	"ipoibd/cmd/ipoibd/internal/report"
)

// underlays calls each with every software HCA whose underlay is known, and the underlay, nil if it
// does not exist here.
func (f *Facts) underlays(each func(d *Device, n *Netdev) *Finding) (out []Finding) {
	for i := range f.Devices {
		d := &f.Devices[i]
		if !d.Software || d.Underlay == "" {
			continue
		}
		if x := each(d, f.netdev(d.Underlay)); x != nil {
			x.device, x.Subject = d.Name, d.Underlay
			out = append(out, *x)
		}
	}
	return out
}

func underlayUnclear(f *Facts) (out []Finding) {
	for _, d := range f.Devices {
		if d.Unclear != nil {
			out = append(out, Finding{
				device: d.Name, Subject: d.Name, What: "it is not clear which netdev the software HCA should use", Evidence: d.Unclear.Error(),
				Advice: "name the netdev that leads to the other hosts", Command: "ipoibd run --underlay NETDEV",
			})
		}
	}
	return out
}

func underlayMissing(f *Facts) []Finding {
	return f.underlays(func(d *Device, n *Netdev) *Finding {
		if n != nil || len(f.Netdevs) == 0 {
			return nil
		}
		var names []string
		for _, n := range f.Netdevs {
			names = append(names, n.Name)
		}
		return &Finding{
			What: "the underlay does not exist in this network namespace", Evidence: fmt.Sprintf("there is no %s among %s", d.Underlay, strings.Join(names, ", ")),
			Advice: "name another netdev with --underlay, or create this one", Command: "ip -brief link",
		}
	})
}

func underlayLoopback(f *Facts) []Finding {
	return f.underlays(func(_ *Device, n *Netdev) *Finding {
		if n == nil || !n.Loopback {
			return nil
		}
		return &Finding{
			What: "the underlay is a loopback, which leads to no other host", Evidence: n.Name + " has the flag LOOPBACK",
			Advice: "name the netdev that leads to the other hosts", Command: "ipoibd run --underlay NETDEV",
		}
	})
}

func underlayDown(f *Facts) []Finding {
	return f.underlays(func(_ *Device, n *Netdev) *Finding {
		if n == nil || n.Up {
			return nil
		}
		return &Finding{What: "the underlay is down", Evidence: n.Name + " lacks the flag UP", Advice: "bring it up", Command: report.Command("ip link set %s up", n.Name)}
	})
}

func underlayNoCarrier(f *Facts) []Finding {
	return f.underlays(func(_ *Device, n *Netdev) *Finding {
		if n == nil || !n.Up || n.Carrier {
			return nil
		}
		return &Finding{
			What: "the underlay has no carrier", Evidence: n.Name + " lacks the flag LOWER_UP",
			Advice: "check its cable, its switch port, or the other end of a virtual link", Command: report.Command("ethtool %s", n.Name),
		}
	})
}

func underlayNoAddress(f *Facts) []Finding {
	return f.underlays(func(_ *Device, n *Netdev) *Finding {
		if n == nil || len(n.Addrs) > 0 || n.Loopback || !n.Up {
			return nil
		}
		return &Finding{
			What: "the underlay has no IP address, so the software HCA has no GID", Evidence: n.Name + " has no address",
			Advice: "give it one", Command: report.Command("ip address add ADDRESS/PREFIX dev %s", n.Name),
		}
	})
}

func multicastOff(f *Facts) []Finding {
	return f.underlays(func(d *Device, n *Netdev) *Finding {
		if n == nil || n.Multicast || n.Loopback || f.replicates(d.Name) {
			return nil
		}
		return &Finding{
			What: "the underlay does not carry multicast, which hosts need to find each other without --peer", Evidence: n.Name + " lacks the flag MULTICAST",
			Advice: "enable it, or name the other hosts with --peer", Command: report.Command("ip link set %s multicast on", n.Name),
		}
	})
}

// replicates reports whether a running device sends multicast to a list of peers. Before a start this
// is not known, and it returns true.
func (f *Facts) replicates(device string) bool {
	if f.Status == nil {
		return true
	}
	for i := range f.Status.Devices {
		if d := &f.Status.Devices[i]; d.Name == device {
			return d.Replicates
		}
	}
	return false
}

func firewallIn(f *Facts) (out []Finding) {
	for _, r := range f.Drops {
		out = append(out, Finding{
			Subject: strings.Join([]string{r.Family, r.Table, r.Chain}, " "), What: "a firewall of this host drops what the peers send", Evidence: "nft: " + r.Text,
			Advice: "delete the rule, or add one before it that accepts UDP port 4791", Command: report.Command("nft delete rule %s %s %s handle %s", r.Family, r.Table, r.Chain, r.Handle),
		})
	}
	return out
}

func addressDuplicate(f *Facts) (out []Finding) {
	for _, x := range f.Interfaces {
		n := f.netdev(x.Name)
		if n == nil {
			continue
		}
		for _, a := range n.Addrs {
			if a.Duplicate {
				out = append(out, Finding{
					device: x.Device, Subject: x.Name, What: "another host on the IPoIB network has the same address, so the kernel does not use it here", Evidence: fmt.Sprintf("%s has the flag dadfailed", a.Prefix),
					Advice: "remove it here, and assign another one", Command: report.Command("ip address del %s dev %s", a.Prefix, x.Name),
				})
			}
		}
	}
	return out
}

func addressOverlap(f *Facts) (out []Finding) {
	for _, x := range f.Interfaces {
		mine := x.Addresses
		if n := f.netdev(x.Name); n != nil {
			mine = n.global()
		}
		for i := range f.Devices {
			d := &f.Devices[i]
			below := f.netdev(d.Underlay)
			if d.Name != x.Device || below == nil {
				continue
			}
			if a, b, ok := overlapping(mine, below.global()); ok {
				out = append(out, Finding{
					device: d.Name, Subject: x.Name, What: "the interface and its underlay have addresses in the same network, so the routes decide which of the two a packet takes",
					Evidence: fmt.Sprintf("%s of %s and %s of %s overlap", a, x.Name, b, below.Name),
					Advice:   "use another network for the interface", Command: report.Command("ip address del %s dev %s", a, x.Name),
				})
			}
		}
	}
	return out
}

// overlapping returns the first two prefixes with a common address. A default route overlaps
// everything, on purpose.
func overlapping(a, b []netip.Prefix) (x, y netip.Prefix, found bool) {
	for _, x := range a {
		for _, y := range b {
			if x.Bits() > 0 && y.Bits() > 0 && x.Overlaps(y) {
				return x, y, true
			}
		}
	}
	return x, y, false
}

func noAddress(f *Facts) (out []Finding) {
	if f.Status == nil {
		return nil
	}
	for _, x := range f.Interfaces {
		if n := f.netdev(x.Name); n != nil && n.Up && n.Master == "" && len(n.global()) == 0 {
			out = append(out, Finding{
				device: x.Device, Subject: x.Name, What: "the interface has no address, so the host does not use it", Evidence: fmt.Sprintf("%s has no address but link-local ones", n.Name),
				Advice: "assign one", Command: report.Command("ip address add ADDRESS/PREFIX dev %s", x.Name),
			})
		}
	}
	return out
}

// bridgeMTU finds ports of the bridge of an interface with a larger MTU. A bridge drops what is too
// long for a port without an ICMP error.
func bridgeMTU(f *Facts) (out []Finding) {
	for _, x := range f.Interfaces {
		n := f.netdev(x.Name)
		if n == nil || n.Master == "" {
			continue
		}
		for _, other := range f.Netdevs {
			if other.Master == n.Master && other.MTU > n.MTU {
				out = append(out, Finding{
					device: x.Device, Subject: x.Name, What: "a port of the same bridge has a larger MTU, so packets that are too long for the interface vanish without an ICMP error",
					Evidence: fmt.Sprintf("the MTU of %s is %d, that of %s is %d; both are ports of %s", n.Name, n.MTU, other.Name, other.MTU, n.Master),
					Advice:   "set the same MTU on that port, and in the guest or container behind it (DHCP option 26 can)", Command: report.Command("ip link set %s mtu %d", other.Name, n.MTU),
				})
				break
			}
		}
	}
	return out
}
