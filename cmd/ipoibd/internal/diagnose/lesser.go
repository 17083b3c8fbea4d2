package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
	"ipoibd/hca"
)

// warnings are about what works only in part, or may soon fail.
var warnings = []rule{
	{"address_overlap", Warning, interfaces, addressOverlap, nil, texts{
		"the interface and its underlay have addresses in the same network, so the routes decide which of the two a " +
			"packet takes",
		"{own} of {subject} and {below} of {underlay} overlap",
		"use another network for the interface", "ip address del {own} dev {subject}",
	}},
	{"no_address", Warning, hereInterfaces, noAddress, append([]string{"interface_unassigned"}, noInterface...), texts{
		"the interface has no address, so the host does not use it", "{subject} has no address but link-local ones",
		"assign one", "ip address add ADDRESS/PREFIX dev {subject}",
	}},
	{"path_mtu", Warning, served, pathMTU, nil, texts{
		"large packets to a peer may be lost", "{notice}",
		"measure what passes, because a router's report may be forged; if large packets are lost, lower the MTU of " +
			"the interface, or raise that of the path",
		"ipoibd ping --sweep {peer}",
	}},
	{"bridge_mtu", Warning, hereInterfaces, bridgeMTU, nil, texts{
		"a port of the same bridge has a larger MTU, so packets that are too long for the interface vanish without " +
			"an ICMP error",
		"the MTU of {subject} is {mtu}, that of {port} is {port_mtu}; both are ports of {bridge}",
		"set the same MTU on that port, and in the guest or container behind it (DHCP option 26 can)",
		"ip link set {port} mtu {mtu}",
	}},
	{"bridge_firewall", Warning, hereInterfaces, bridgeFirewall, nil, texts{
		"the firewall of this host may drop what the bridge of the interface forwards",
		"{subject} is a port of {bridge}; net.bridge.bridge-nf-call-iptables is 1, and the policy of nft chain {chain} " +
			"in table {family} {table} is to drop, with no rule about {bridge}",
		"let bridges bypass the firewall, or accept what {bridge} forwards", "sysctl -w net.bridge.bridge-nf-call-iptables=0",
	}},
	{"not_forwarding", Warning, hereInterfaces, notForwarding, noInterface, texts{
		"this host drops packets for other hosts, because IP forwarding is off",
		"{packets} IPv4 packets were dropped within {watched} (InAddrErrors of /proc/net/snmp)",
		"enable forwarding; if a guest behind {subject} is the router, give it an interface of its own, because peers " +
			"cannot tell it from this host",
		"sysctl -w net.ipv4.ip_forward=1",
	}},
	{"stations_full", Warning, served, noticed("stations_full"), nil, texts{
		"guests behind the interface may not be reached", "{notice}",
		"find the guest that invents addresses, or put some guests behind another interface",
		"ipoibd status -v --control {control}",
	}},
	{"groups_unserved", Warning, served, noticed("groups_unserved"), nil, texts{
		"multicast of some groups does not arrive", "{notice}",
		"find the guest that joins too many groups (station lines), or the reason in the log of the subnet manager",
		"ipoibd status -v --control {control}",
	}},
	{"neighbours_full", Warning, fullTables, always, nil, texts{
		"the kernel's neighbour table is full, so packets to hosts that are not in it are lost",
		"{table} has {entries} entries of at most {limit}, and had no room for {more} more while it was watched",
		"make room on the host; if the network has fewer hosts, one of them sends from forged addresses ('ip neigh' " +
			"lists them, and 'ipoibd peers' their GIDs)",
		"sysctl -w {sysctl}.gc_thresh2={some} {sysctl}.gc_thresh3={enough}",
	}},
	{"events_lost", Warning, served, noticed("events_lost"), nil, texts{
		"traffic is slow, because interrupts of the HCA are lost", "{notice}",
		"check whether its interrupts are delivered (/proc/interrupts); if a reset does not help, its firmware or " +
			"its driver is at fault",
		"ipoibd reset device --device {device}",
	}},
	{"files_nearly_exhausted", Warning, daemon, filesNearlyExhausted, nil, texts{
		"the daemon is close to its limit of open files", "{open} are open, RLIMIT_NOFILE is {files}",
		"raise the limit (a systemd unit: LimitNOFILE=)", "prlimit --pid {pid} --nofile=4096",
	}},
	{"other_version", Warning, daemon, otherVersion, nil, texts{
		"the daemon and this program have different versions", "the daemon is {daemon_version}, this program {version}",
		"restart the daemon; ib0 and its connections survive that", restart,
	}},
	{"unknown_variable", Warning, variables, always, nil, texts{
		"the environment variable belongs to no flag of 'ipoibd run', so it is ignored", "{subject} is set",
		"correct its spelling ('ipoibd run --help' lists the flags), or remove it", "unset {subject}",
	}},
	{"send_buffer", Warning, devices, noticed("send_buffer"), nil, texts{
		"the send buffer is small, so peers that do not answer can delay traffic to the others", "{notice}",
		"raise the limit on the host, and restart the daemon", "sysctl -w net.core.wmem_max=134217728",
	}},
	{"other_notice", Warning, devices, otherNotice, nil, texts{
		"the daemon reports a problem that this program does not know", "{notice}",
		"use the same ipoibd version as the daemon", "",
	}},
}

// hints are about what could work better.
var hints = []rule{
	{"no_ipv6", Hint, served, noIPv6, nil, texts{
		"the interface cannot have IPv6 addresses", "{notice} (it is {mtu})",
		"if the MTU of the interface was set, raise it; else raise that of the underlay and of the network below " +
			"(with --standard-mtu, to 2120 or more)",
		"ip link set {underlay} mtu {usual}",
	}},
	{"no_ebpf", Hint, servedOrWanted, noEBPF, append([]string{"no_net_admin"}, noInterface...), texts{
		"without eBPF programs, the daemon receives every frame, even those that IPoIB cannot carry",
		"{refused} | the effective capabilities are {caps}, without CAP_BPF and CAP_PERFMON",
		"grant CAP_BPF and CAP_PERFMON (a container: --cap-add BPF --cap-add PERFMON) and restart the daemon, or " +
			"switch eBPF off",
		"ipoibd run --ebpf=false",
	}},
	{"no_fast_path", Hint, served, noFastPath, noInterface, texts{
		"the fast path carries nothing, so the daemon carries all frames", "{refused}",
		"fix the problem shown above (and, unless it is IPsec policies, restart the daemon), or switch the fast path off",
		"ipoibd run --fast-path=false",
	}},
	{"one_socket", Hint, devices, noticed("one_socket"), nil, texts{
		"the lanes do not receive in parallel", "{notice}",
		"fix the problem shown above and restart the daemon", "",
	}},
	{"no_segmentation", Hint, devices, noticed("no_segmentation"), nil, texts{
		"bulk traffic is slower, because the kernel or the NIC does not segment UDP", "{notice}",
		"see whether checksum offload can be switched on (tx-checksum-ip-generic)", "ethtool -k {underlay}",
	}},
	{"alone", Hint, openDevices, alone, noAnswer, texts{
		"the daemon has not heard from any other host", "{notice}",
		"if there should be other hosts, name them", "ipoibd run --peer ADDRESS",
	}},
	{"drops", Hint, dropping, always, append([]string{"no_peer_answers"}, noAnswer...), texts{
		"frames were dropped within {watched}", "{lost}",
		"look up the counters in docs/counters.md if these frames should have arrived",
		"ipoibd status -v --control {control}",
	}},
	{"clock_stepped", Hint, daemon, clockStepped, nil, texts{
		"the clock was set while the daemon ran, so the times of earlier events are wrong; its own timers are not " +
			"affected",
		"the daemon recorded its start at {start}; by the kernel's boot time clock, that is off by {step}",
		"keep that in mind when you compare times; synchronize the clock before starting the daemon",
		"ipoibd events --control {control}",
	}},
}

func addressOverlap(s *subject) bool {
	own, below := s.iface.Addresses, s.underlayOf(s.device)
	if s.netdev != nil {
		own = s.netdev.global()
	}
	if below == nil {
		return false
	}
	a, b, overlap := overlapping(own, below.global())
	return s.sayIf(overlap, "own", a, "below", b, "underlay", below.Name)
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

func noAddress(s *subject) bool {
	n := s.netdev
	return s.Status != nil && n.Up && n.Master == "" && len(n.global()) == 0
}

func pathMTU(s *subject) bool {
	to := hca.GIDFromAddr(s.narrowest(s.ib).To)
	p := first(s.ib.Peers, func(p *report.Peer) bool { return p.GID == to && len(p.IPs) > 0 })
	if p != nil {
		s.say("peer", p.IPs[0])
	}
	return s.notices("path_mtu")
}

// narrowest returns the narrowest path from the GID of an interface, or the zero PathLimit if it carries all
// that the underlay does.
func (f *Facts) narrowest(x *report.Interface) (l hca.PathLimit) {
	d := f.reported(x.Device)
	if d == nil || x.QP == nil {
		return l
	}
	p := first(d.Ports, func(p *report.Port) bool { return p.Num == int(x.Port) })
	if i := x.QP.GIDIndex; p != nil && i >= 0 && i < len(p.GIDs) {
		return p.GIDs[i].Path
	}
	return l
}

// bridgeMTU finds a port of the bridge of an interface with a larger MTU. A bridge drops what is too
// long for a port without an ICMP error.
func bridgeMTU(s *subject) bool {
	n := s.netdev
	port := first(s.Netdevs, func(x *Netdev) bool { return n.Master != "" && x.Master == n.Master && x.MTU > n.MTU })
	if port == nil {
		return false
	}
	s.say("mtu", n.MTU, "port", port.Name, "port_mtu", port.MTU, "bridge", n.Master)
	return true
}

// bridgeFirewall finds a chain that drops what the bridge of an interface forwards. A rule about the bridge may accept
// it.
func bridgeFirewall(s *subject) bool {
	n := s.netdev
	if n.Master == "" || !s.BridgesFiltered {
		return false
	}
	c := first(s.Forwarding, func(c *FirewallChain) bool {
		return !strings.Contains(c.Text, n.Master) && !strings.Contains(c.Text, "physdev")
	})
	if c == nil {
		return false
	}
	s.say("bridge", n.Master, "chain", c.Chain, "family", c.Family, "table", c.Table)
	return true
}

func notForwarding(s *subject) bool {
	return s.sayIf(s.Unforwarded > 0, "packets", s.Unforwarded)
}

// fullTables lists the kernel's neighbour tables that were full while the daemon was watched.
func fullTables(f *Facts) (out []subject) {
	sysctl := map[string]string{"arp_cache": "net.ipv4.neigh.default", "ndisc_cache": "net.ipv6.neigh.default"}
	for _, now := range f.Neighbours {
		was := first(f.NeighboursEarlier, func(t *NeighbourTable) bool { return t.Name == now.Name })
		if was == nil || now.Fulls <= was.Fulls {
			continue
		}
		out = append(out, f.subject("", "", "table", now.Name, "entries", now.Entries, "limit", now.Limit,
			"more", now.Fulls-was.Fulls, "sysctl", sysctl[now.Name], "some", 8*now.Limit, "enough", 16*now.Limit))
	}
	return out
}

// spareFiles is how many descriptors the daemon opens for a moment at most, such as to inspect its interfaces.
const spareFiles = 12

func filesNearlyExhausted(s *subject) bool {
	open, limit := s.Status.FDs, s.Process.Files
	s.say("open", open, "files", limit)
	return s.Process.Known() && open >= 0 && uint64(open)+max(spareFiles, limit/10) >= limit
}

func otherVersion(s *subject) bool {
	return s.sayIf(s.Status.Version != s.Version, "daemon_version", s.Status.Version, "version", s.Version)
}

// otherNotice finds a notice of a newer daemon.
func otherNotice(s *subject) bool {
	n := first(s.open.Notices, func(n *report.Notice) bool { return !slices.Contains(NoticeKinds(), n.Kind) })
	if n == nil {
		return false
	}
	s.say("notice", n.Text)
	return true
}

const usualMTU = 1500 // of an underlay; with it, the interface can have IPv6 addresses

func noIPv6(s *subject) bool {
	below := s.underlayOf(s.device)
	if below != nil && below.MTU < usualMTU {
		s.say("underlay", below.Name, "usual", usualMTU)
	}
	return s.notices("no_ipv6")
}

// noEBPF asks the daemon if there is one, because it has dropped the capabilities.
func noEBPF(s *subject) bool {
	if s.ib != nil {
		return s.sayIf(s.ib.NoEBPF != "", "refused", s.ib.NoEBPF)
	}
	p := s.Process
	s.say("caps", fmt.Sprintf("%#x", p.Caps))
	return s.iface.EBPF && p.lacks(capSysAdmin) && (p.lacks(capBPF) || p.lacks(capPerfmon))
}

func noFastPath(s *subject) bool { return s.sayIf(s.ib.NoFastPath != "", "refused", s.ib.NoFastPath) }

func alone(s *subject) bool { return s.notices("silent") && len(s.open.Peers) == 0 }

// dropping lists everything that dropped frames while it was watched: each device of the daemon, then its
// interfaces.
func dropping(f *Facts) (out []subject) {
	add := func(name, device string, lost []string) {
		if len(lost) > 0 {
			out = append(out, f.subject(name, device, "lost", strings.Join(atMost(lost, "more counters"), "\n")))
		}
	}
	for _, s := range devices(f) {
		d := s.open
		if e := f.before(d); e != nil {
			add(d.Name, d.Name, grownDrops(e.Counters, d.Counters, docs.DeviceCounter))
		}
		for _, x := range f.interfacesOf(d) {
			if e := f.interfaceBefore(x); e != nil {
				add(x.Name, d.Name, append(grownDrops(e.Counters, x.Counters, docs.InterfaceCounter),
					grownDrops(e.Kernel, x.Kernel, docs.InterfaceCounter)...))
			}
		}
	}
	return out
}

// grownDrops describes the counters of lost frames that grew, those that grew most first.
func grownDrops(earlier, later report.Counters, meaning func(string) string) (lost []string) {
	grown := map[string]uint64{}
	for name, n := range later {
		if was := earlier[name].Value; n.Value > was && docs.Lost(name) {
			grown[name] = n.Value - was
		}
	}
	most := func(a, b string) int { return cmp.Or(cmp.Compare(grown[b], grown[a]), cmp.Compare(a, b)) }
	for _, name := range slices.SortedFunc(maps.Keys(grown), most) {
		text := fmt.Sprintf("%s grew by %d to %d: %s", name, grown[name], later[name].Value, meaning(name))
		lost = append(lost, strings.TrimSuffix(text, ": "))
	}
	return lost
}

// stepLimit is how long a process may take from its start until it reads the clock.
const stepLimit = 10 * time.Second

func clockStepped(s *subject) bool {
	s.say("start", s.Status.Started.Local().Format(time.DateTime), "step", s.ClockStep.Abs().Round(time.Second))
	return s.ClockStep.Abs() >= stepLimit
}
