package neigh

import (
	"fmt"
	"net/netip"
	"strings"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// names prints addresses by the names that a transcript has given them.
type names struct {
	macs map[ipoib.MAC]string
	ends map[endpoint]string
}

func (n names) mac(m ipoib.MAC) string {
	switch {
	case m.IsZero():
		return "-"
	case m.IsBroadcast():
		return "broadcast"
	case n.macs[m] != "":
		return n.macs[m]
	}
	return m.String()
}

func (n names) addr(a ipoib.Addr) string {
	e := endpointOf(a)
	switch {
	case a == ipoib.Addr{}:
		return "-"
	case n.ends[e] != "":
		return n.ends[e]
	}
	return fmt.Sprintf("%v/%#x", e.gid, uint32(e.qpn))
}

func (n names) action(a Action) string {
	switch a := a.(type) {
	case SendFabric:
		return fmt.Sprintf("-> fabric %v qpn %#x: %s", a.Dest.AH, uint32(a.Dest.QPN), n.message(a.Msg))
	case SendHost:
		return "-> host " + n.frame(a.Frame)
	case CreateAH:
		by := ""
		if a.Path != (hca.UDPath{}) {
			by = fmt.Sprintf(" by lid %d sl %d", a.Path.DLID, a.Path.SL)
		}
		return fmt.Sprintf("create ah %d for %v%s", a.ID, a.DGID, by)
	case FindPath:
		return fmt.Sprintf("find path to %v", a.GID)
	case DestroyAH:
		return fmt.Sprintf("destroy %v after epoch %d", a.AH, a.LastEpoch)
	case EchoReply:
		return fmt.Sprintf("echo reply id %d of %s, %d bytes", a.ID, n.addr(ipoib.NewAddr(a.QPN, a.GID)), a.Size)
	case GroupsChanged:
		return "groups changed"
	case Publish:
		return fmt.Sprintf("publish epoch %d: %s", a.Snapshot.Epoch(), n.snapshot(a.Snapshot))
	}
	return fmt.Sprintf("?%T", a)
}

func (n names) snapshot(s *Snapshot) string {
	if !s.up {
		return "no QP"
	}
	routesByMAC := allOf(s.routes)
	if len(routesByMAC) > 8 {
		return fmt.Sprintf("host %s, %d routes", n.stations(s), len(routesByMAC))
	}
	var routes []string
	for _, from := range allOf(s.sources) {
		if r, ok := routesByMAC[keyOf(from.mac)]; ok {
			routes = append(routes, fmt.Sprintf("%s=%v/%#x", n.mac(from.mac), r.dest.AH, uint32(r.dest.QPN)))
		}
	}
	return fmt.Sprintf("host %s, routes [%s]", n.stations(s), strings.Join(sorted(routes), " "))
}

// stations describes where the addresses on the host's side are, but for those at home, and those that go to the fallback.
func (n names) stations(s *Snapshot) string {
	var at []string
	for k, m := range allOf(s.places) {
		if m != s.home && !m.IsZero() {
			at = append(at, fmt.Sprintf(" %v=%s", netip.AddrFrom16(k).Unmap(), n.mac(m)))
		}
	}
	return n.mac(s.home) + strings.Join(sorted(at), "")
}

func (n names) message(msg []byte) string {
	typ, body, err := ipoib.ParseHeader(msg)
	if err != nil {
		return err.Error()
	}
	if arp, err := ipoib.ParseARP(body); err == nil && typ == ipoib.EtherTypeARP {
		return fmt.Sprintf("arp %d %v (%s) > %v (%s)", arp.Op, arp.SPA, n.addr(arp.SHA), arp.TPA, n.addr(arp.THA))
	}
	if typ == ipoib.EtherTypeEcho {
		echo, err := ipoib.ParseEcho(body)
		return fmt.Sprintf("echo %+v of %d bytes, %v", echo, len(body), err)
	}
	if typ == ipoib.EtherTypeIPv6 && ipoib.IsND(body) {
		nd, err := ipoib.ParseND(body, ipoib.FormIPoIB)
		link, ok := nd.Link.IPoIB()
		return describeND(nd, err, ok, n.addr(link))
	}
	return describeIP(typ, body)
}

func (n names) frame(raw []byte) string {
	f, _ := parseFrame(raw)
	head := fmt.Sprintf("%s < %s: ", n.mac(f.dst), n.mac(f.src))
	if arp, err := ipoib.ParseEtherARP(f.body()); err == nil && f.isARP() {
		return head + fmt.Sprintf("arp %d %v (%s) > %v (%s)", arp.Op, arp.SPA, n.mac(arp.SHA), arp.TPA, n.mac(arp.THA))
	}
	if f.isND() {
		nd, err := ipoib.ParseND(f.body(), ipoib.FormEther)
		link, ok := nd.Link.MAC()
		return head + describeND(nd, err, ok, n.mac(link))
	}
	return head + describeIP(f.typ, f.body())
}

func describeND(nd ipoib.ND, err error, named bool, link string) string {
	if err != nil {
		return err.Error()
	}
	s := fmt.Sprintf("nd %d %v > %v", nd.Type, nd.Src, nd.Dst)
	if nd.Flags != 0 {
		s += fmt.Sprintf(" flags %#x", nd.Flags)
	}
	if nd.Target.IsValid() {
		s += fmt.Sprintf(" target %v", nd.Target)
	}
	if named {
		s += " link " + link
	}
	return s
}

func describeIP(typ ipoib.EtherType, body []byte) string {
	src, _ := ipoib.SourceIP(typ, body)
	dst, _ := ipoib.DestIP(typ, body)
	return fmt.Sprintf("ip %v > %v", src, dst)
}

// counters prints a table's non-zero counters.
func counters(s Stats) (out []string) {
	for _, c := range s.Counters() {
		if c.Value > 0 {
			out = append(out, fmt.Sprintf("%s %d", c.Name, c.Value))
		}
	}
	return append(out, fmt.Sprintf("kept %d, heard %d, used %d, resolutions %d, handles %d",
		s.Kept, s.Heard, s.Used, s.Resolutions, s.AHs))
}

func ipList(s []string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, ip(a))
	}
	return out
}
