package diagnose

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link"
)

var (
	now     = time.Unix(1e9, 0)
	address = netip.MustParseAddr("192.0.2.1")
	peer    = netip.MustParseAddr("192.0.2.2")
)

// idle returns the facts of a healthy host before the first start.
func idle() *Facts {
	return &Facts{
		Version: "v1", Socket: Socket{Path: "/run/c.sock"},
		Process:    Process{Caps: 1<<41 - 1, Memlock: 1 << 40, Files: 1024},
		Devices:    []Device{{Name: "soft", HCA: "soft", Software: true, Underlay: "eth0"}},
		Interfaces: []Interface{{Name: "ib0", Device: "soft", EBPF: true}},
		Netdevs: []Netdev{
			{Name: "lo", Up: true, Carrier: true, Loopback: true},
			{Name: "eth0", Up: true, Carrier: true, Multicast: true, Addrs: []Addr{{netip.PrefixFrom(address, 24), false}}},
		},
	}
}

// busy returns the facts of a healthy host whose daemon talks to a peer.
func busy() *Facts {
	f := idle()
	f.Socket.State, f.Socket.PID, f.Process.PID = SocketAnswers, 7, 7
	f.Interfaces[0].EBPF = false // not known
	f.Netdevs = append(f.Netdevs, Netdev{Name: "ib0", Up: true, Carrier: true, Multicast: true, Addrs: []Addr{{netip.MustParsePrefix("10.9.0.1/24"), false}}})
	f.Status, f.Earlier, f.Watched = status(), status(), time.Second
	return f
}

func status() *report.Status {
	return &report.Status{
		SchemaVersion: report.SchemaVersion, Version: "v1", PID: 7, Time: now, Started: now.Add(-time.Hour), FDs: 30,
		Devices: []report.Device{{Name: "soft", HCA: "soft", Underlay: "eth0", State: report.DeviceOpen, Reason: "none", Since: now, Counters: report.Counters{}}},
		Interfaces: []report.Interface{{
			Name: "ib0", Device: "soft", Port: 1, Time: now, State: "up", Reason: "none", Carrier: true, MTU: 1444,
			Groups: []report.Group{{}}, Peers: []report.Peer{{IPs: []string{"10.9.0.2"}}},
			QP:     &report.QP{PKey: hca.PKeyDefault, GID: hca.GIDFromAddr(address)},
			Kernel: report.Counters{},
		}},
	}
}

// lonely removes the peers.
func (f *Facts) lonely() { f.Status.Interfaces[0].Peers = nil }

// count sets a counter, and what it was before.
func (f *Facts) count(name string, before, is uint64) {
	f.Earlier.Devices[0].Counters[name] = report.Count{Value: before}
	f.Status.Devices[0].Counters[name] = report.Count{Value: is}
}

// countOfInterface is count for a counter of the interface.
func (f *Facts) countOfInterface(name string, before, is uint64) {
	f.Earlier.Interfaces[0].Counters = report.Counters{name: {Value: before}}
	f.Status.Interfaces[0].Counters = report.Counters{name: {Value: is}}
}

func (f *Facts) device() *report.Device   { return &f.Status.Devices[0] }
func (f *Facts) iface() *report.Interface { return &f.Status.Interfaces[0] }

// noticing returns a change that adds a notice of the device.
func noticing(kind string) func(*Facts) {
	return func(f *Facts) { f.device().Notices.Add(kind, "the text of "+kind) }
}

// taken returns a UDP port that processes or a kernel module use.
func taken(module string, holders ...Holder) *TakenPort {
	err := &udp.PortTakenError{Port: 4791, Kernel: module}
	for _, h := range holders {
		err.Holders = append(err.Holders, udp.Holder(h))
	}
	return &TakenPort{err, holders, module}
}

// diagnoses has set-ups with what is found, the first one first. Each finding's evidence and command
// contain a text, unless it is empty.
var diagnoses = []struct {
	name              string
	facts             func() *Facts
	change            func(*Facts)
	want              string // IDs
	evidence, command string // of the first
}{
	{"healthy, no daemon", idle, func(*Facts) {}, "", "", ""},
	{"healthy, with a daemon", busy, func(*Facts) {}, "", "", ""},

	{"too many MACs", busy, func(f *Facts) { f.countOfInterface("neigh_drop_stations_full", 66, 69) }, "drops", "neigh_drop_stations_full grew by 3 to 69: from a MAC behind ib0 beyond the limit of 1,024", "ipoibd status -v"},
	{"the TAP's queue is full", busy, func(f *Facts) {
		f.countOfInterface("tx_sent", 1, 9)
		f.Earlier.Interfaces[0].Kernel = report.Counters{"kernel_tx_dropped": {Value: 1}, "tap_filter_passed": {Value: 1}}
		f.iface().Kernel["kernel_tx_dropped"] = report.Count{Value: 3}
	}, "drops", "kernel_tx_dropped grew by 2 to 3", ""},
	{"a device's drops", busy, func(f *Facts) { f.count("rx_drop_icrc", 1, 2) }, "drops", "rx_drop_icrc grew by 1 to 2: wrong checksum", ""},
	{"drops that another finding explains", busy, func(f *Facts) { f.count("rx_drop_qkey", 1, 2) }, "qkey_mismatch", "", ""},
	{"drops before", busy, func(f *Facts) { f.countOfInterface("neigh_drop_stations_full", 69, 69) }, "", "", ""},
	{"a port of the bridge has a larger MTU", busy, func(f *Facts) {
		f.Netdev("ib0").MTU, f.Netdev("ib0").Master = 1444, "br0"
		f.Netdevs = append(f.Netdevs, Netdev{Name: "veth1", MTU: 1500, Master: "br0"}, Netdev{Name: "veth2", MTU: 1500, Master: "br1"})
	}, "bridge_mtu", "the MTU of ib0 is 1444, that of veth1 is 1500", "ip link set veth1 mtu 1444"},
	{"the firewall drops what a bridge forwards", busy, func(f *Facts) {
		f.Netdev("ib0").Master, f.BridgesFiltered = "br0", true
		f.Forwarding = []FirewallChain{{"ip", "filter", "FORWARD", "counter jump DOCKER-USER\n"}}
	}, "bridge_firewall", "ib0 is a port of br0; net.bridge.bridge-nf-call-iptables is 1, and the policy of nft chain FORWARD in table ip filter", "sysctl -w net.bridge.bridge-nf-call-iptables=0"},
	{"the firewall does not see bridges", busy, func(f *Facts) {
		f.Netdev("ib0").Master, f.Forwarding = "br0", []FirewallChain{{"ip", "filter", "FORWARD", ""}}
	}, "", "", ""},
	{"the firewall accepts what the bridge forwards", busy, func(f *Facts) {
		f.Netdev("ib0").Master, f.BridgesFiltered = "br0", true
		f.Forwarding = []FirewallChain{{"ip", "filter", "FORWARD", "iifname \"br0\" accept\n"}}
	}, "", "", ""},
	{"the firewall drops what is routed", busy, func(f *Facts) {
		f.BridgesFiltered, f.Forwarding = true, []FirewallChain{{"ip", "filter", "FORWARD", ""}}
	}, "", "", ""},
	{"packets for other hosts", busy, func(f *Facts) { f.Unforwarded = 3 }, "not_forwarding", "3 IPv4 packets were dropped within 1s", "sysctl -w net.ipv4.ip_forward=1"},

	{"mistakes", idle, func(f *Facts) { f.Mistake, f.Devices, f.Interfaces = errors.New("c.yaml:2: mtu: 5"), nil, nil }, "config_mistake", "c.yaml:2", ""},
	{"a variable", idle, func(f *Facts) { f.UnknownVariables = []string{"IPOIBD_X"} }, "unknown_variable", "IPOIBD_X", "unset IPOIBD_X"},
	{"another user", idle, func(f *Facts) { f.Socket.State, f.Socket.Err = SocketDenied, unix.EACCES }, "socket_denied", "permission", "sudo ipoibd doctor --control /run/c.sock"},
	{"a file", idle, func(f *Facts) {
		f.Socket.State, f.Socket.Err, f.Control = SocketBlocked, errors.New("a file"), errors.New("full")
	}, "socket_blocked", "a file", "mv /run/c.sock /run/c.sock.old"},
	{"another program", idle, func(f *Facts) { f.Socket.State, f.Socket.Err, f.Socket.PID = SocketGarbage, errors.New("eh"), 8 }, "socket_garbage", "eh (process 8)", "kill 8"},
	{"another program, elsewhere", idle, func(f *Facts) { f.Socket.State, f.Socket.Err = SocketGarbage, errors.New("eh") }, "socket_garbage", "eh", ""},
	{"stopped", idle, func(f *Facts) { f.Socket = Socket{State: SocketHangs, Err: errors.New("5s"), PID: 8, Stopped: true} }, "daemon_hangs", "state T", "kill -CONT 8"},
	{"hangs", idle, func(f *Facts) { f.Socket = Socket{State: SocketHangs, Err: errors.New("5s"), PID: 8} }, "daemon_hangs", "5s", "kill -QUIT 8"},
	{"killed", idle, func(f *Facts) { f.Socket.State, f.Socket.Err = SocketStale, errors.New("no process") }, "daemon_ended", "no process", "ipoibd run"},
	{"killed, a service", idle, func(f *Facts) {
		f.Socket.State, f.Socket.Err, f.Service.Active = SocketStale, errors.New("no process"), "inactive"
	}, "daemon_ended", "", "systemctl restart ipoibd"},
	{"the service fails", idle, func(f *Facts) {
		f.Socket.State, f.Socket.Err, f.Service = SocketStale, errors.New("no process"), Service{"failed", "exit-code", "5"}
	}, "service_failed", "Result=exit-code NRestarts=5", "journalctl -u ipoibd -n 20"},
	{"the service starts again and again", idle, func(f *Facts) { f.Service = Service{"activating", "exit-code", "3"} }, "service_failed", "NRestarts=3", ""},
	{"the service is being started", idle, func(f *Facts) { f.Service = Service{"activating", "success", "0"} }, "", "", ""},
	{"the service runs", busy, func(f *Facts) { f.Service = Service{"active", "success", "0"} }, "", "", ""},
	{"the service does not run", idle, func(f *Facts) { f.Service = Service{"inactive", "success", "0"} }, "", "", ""},
	{"a full disk", idle, func(f *Facts) { f.Control = errors.New("full") }, "control_unwritable", "full", "ipoibd run --control"},
	{"no tun", idle, func(f *Facts) { f.Tun, f.NoTun = link.ErrNoTun, true }, "tun_missing", "/dev/net/tun is missing", "modprobe tun"},
	{"no right to tun", idle, func(f *Facts) { f.Tun = link.ErrPermission }, "tun_denied", "not permitted", "chmod 0666 /dev/net/tun"},
	{"no capability", idle, func(f *Facts) { f.Process.Caps &^= 1 << unix.CAP_NET_ADMIN }, "no_net_admin", "(user 0)", ""},
	{"a user", idle, func(f *Facts) { f.Process.Caps, f.Process.UID = 0, 1000 }, "no_net_admin", "are 0x0", "sudo ipoibd run"},
	{"few files", idle, func(f *Facts) { f.Process.Files = minFiles - 1 }, "few_files", "is 63", "ulimit -n 1024"},
	{"just enough files", idle, func(f *Facts) { f.Process.Files = minFiles }, "", "", ""},
	{"another process's limits are not known", idle, func(f *Facts) { f.Process = Process{} }, "", "", ""},

	{"no default netdev", idle, func(f *Facts) { f.Devices[0].Underlay, f.Devices[0].Unclear = "", errors.New("several are up: a, b") }, "underlay_unclear", "a, b", "ipoibd run --underlay NETDEV"},
	{"no such netdev", idle, func(f *Facts) { f.Devices[0].Underlay = "eth7" }, "underlay_missing", "no eth7 among lo, eth0", "ip -brief link"},
	{"netdevs are not known", idle, func(f *Facts) { f.Netdevs = nil }, "", "", ""},
	{"loopback", idle, func(f *Facts) { f.Devices[0].Underlay = "lo" }, "underlay_loopback", "lo has", "ipoibd run --underlay NETDEV"},
	{"down", idle, func(f *Facts) { f.Netdev("eth0").Up, f.Netdev("eth0").Addrs = false, nil }, "underlay_down", "eth0", "ip link set eth0 up"},
	{"no carrier", idle, func(f *Facts) { f.Netdev("eth0").Carrier = false }, "underlay_no_carrier", "LOWER_UP", "ethtool eth0"},
	{"no address", idle, func(f *Facts) { f.Netdev("eth0").Addrs = nil }, "underlay_no_address", "eth0", "ip address add ADDRESS/PREFIX dev eth0"},
	{"an evil name", idle, func(f *Facts) {
		f.Netdev("eth0").Up = false
		f.Netdev("eth0").Name, f.Devices[0].Underlay = "a;reboot'", "a;reboot'"
	}, "underlay_down", "", `ip link set 'a;reboot'\''' up`},
	{"no HCA", idle, func(f *Facts) { f.Devices[0] = Device{Name: "soft", HCA: "rxe0", Missing: true} }, "hca_missing", "no RDMA device", "rdma link add rxe0 type rxe netdev NETDEV"},
	{"another HCA", idle, func(f *Facts) {
		f.Devices[0] = Device{Name: "soft", HCA: "rxe0", Missing: true, Present: []string{"rxe1"}}
	}, "hca_missing", "rxe1", ""},
	{"a broken HCA", idle, func(f *Facts) {
		f.Devices[0] = Device{Name: "soft", HCA: "rxe0", Trouble: []string{"cannot use libibverbs.so.1", "port 1: no GID"}}
	}, "hca_unusable", "libibverbs.so.1; port 1: no GID", "ipoibd devices"},
	{"memlock", idle, func(f *Facts) {
		f.Devices[0] = Device{Name: "soft", HCA: "rxe0"}
		f.Interfaces = append(f.Interfaces, Interface{Name: "ib1", Device: "soft"})
		f.Process.Memlock = 2*memoryOfInterface - 1
		f.Process.Caps &^= 1 << unix.CAP_IPC_LOCK
	}, "memlock_low", "85999999", "ulimit -l unlimited"},
	{"memlock with the capability", idle, func(f *Facts) { f.Devices[0].Software, f.Process.Memlock = false, 0 }, "", "", ""},
	{"memlock, but the HCA is open", busy, func(f *Facts) { f.Devices[0].Software, f.Process.Memlock, f.Process.Caps = false, 0, 0 }, "", "", ""},
	{"memlock of a software HCA", idle, func(f *Facts) { f.Process.Memlock, f.Process.Caps = 0, 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_SYS_ADMIN }, "", "", ""},
	{"the port", idle, func(f *Facts) { f.Devices[0].Taken = taken("", Holder{9, "x"}) }, "port_taken", "x (pid 9)", "kill 9"},
	{"the port, by the kernel", idle, func(f *Facts) { f.Devices[0].Taken = taken("rdma_rxe") }, "port_taken", "rdma_rxe", "rmmod rdma_rxe"},
	{"the port, by several", idle, func(f *Facts) {
		f.Devices[0].Taken = taken("", Holder{9, "x"}, Holder{8, "y"})
	}, "port_taken", "y (pid 8)", "ss -ulpn sport = :4791"},
	{"a foreign ib0", idle, func(f *Facts) { f.Interfaces[0].Claim = Claim{Err: link.ErrNameTaken, Foreign: true} }, "name_taken", "does not belong", "ipoibd run --name ib1"},
	{"another daemon", idle, func(f *Facts) { f.Interfaces[0].Claim = Claim{Err: &link.OwnedError{PID: 9}, Owned: true, Owner: 9} }, "name_in_use", "process 9", "ps -o args= -p 9"},
	{"an unknown daemon", idle, func(f *Facts) { f.Interfaces[0].Claim = Claim{Err: &link.OwnedError{}, Owned: true} }, "name_in_use", "unknown", ""},
	{"a start is not examined while a daemon runs", busy, func(f *Facts) {
		f.Tun, f.NoTun, f.Control, f.Process.Files = link.ErrNoTun, true, unix.EROFS, 45
		f.Interfaces[0].Claim = Claim{Err: &link.OwnedError{}, Owned: true}
	}, "", "", ""},
	{"no eBPF", idle, func(f *Facts) { f.Process.Caps &^= 1<<unix.CAP_BPF | 1<<unix.CAP_SYS_ADMIN }, "no_ebpf", "without CAP_BPF", "ipoibd run --ebpf=false"},
	{"no eBPF, not wanted", idle, func(f *Facts) {
		f.Process.Caps &^= 1<<unix.CAP_BPF | 1<<unix.CAP_SYS_ADMIN
		f.Interfaces[0].EBPF = false
	}, "", "", ""},
	{"no eBPF, running", busy, func(f *Facts) { f.iface().NoEBPF = "all are in use" }, "no_ebpf", "all are in use", "ipoibd run --ebpf=false"},
	{"no fast path", busy, func(f *Facts) { f.iface().NoFastPath = "the underlay has no Ethernet header" }, "no_fast_path", "no Ethernet header", "ipoibd run --fast-path=false"},
	{"eBPF was loaded before, or is not wanted", busy, func(f *Facts) { f.Process.Caps = 0 }, "", "", ""},
	{"the same network", idle, func(f *Facts) { f.Interfaces[0].Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.77/25")} }, "address_overlap", "192.0.2.77/25 of ib0 and 192.0.2.1/24 of eth0", "ip address del 192.0.2.77/25 dev ib0"},

	{"suspended", busy, func(f *Facts) {
		f.device().State, f.device().Reason, f.iface().State = "suspended", "operator", "waiting"
	}, "device_suspended", "operator", "ipoibd resume --control /run/c.sock"},
	{"given up", busy, func(f *Facts) {
		f.device().State, f.device().LastError, f.iface().State = "given_up", "no device", "waiting"
	}, "device_given_up", "no device", "ipoibd recover --device soft --control /run/c.sock"},
	{"waiting", busy, func(f *Facts) { f.device().State, f.iface().State = "waiting", "waiting" }, "device_waiting", "waiting since", "ipoibd devices"},
	{"the cause is reported alone", busy, func(f *Facts) {
		f.device().State, f.iface().State, f.Netdev("eth0").Up = "waiting", "waiting", false
		noticing("silent")(f)
	}, "underlay_down", "", ""},
	{"the cause of one device is not that of another", busy, func(f *Facts) {
		f.Devices = append(f.Devices, Device{Name: "second", Software: true, Underlay: "eth1"})
		f.Netdevs = append(f.Netdevs, Netdev{Name: "eth1"})
		f.iface().State, f.iface().Detail = "waiting", "why"
	}, "underlay_down interface_not_ready", "eth1", ""},
	{"an interface hangs", busy, func(f *Facts) { f.iface().Time = now.Add(-time.Minute) }, "interface_hangs", "1m0s", "kill -QUIT 7"},
	{"an interface is lost", busy, func(f *Facts) {
		f.iface().State, f.iface().Reason, f.iface().Detail = "failed", "lost", "it was deleted"
	}, "interface_failed", "it was deleted", "kill 7 && ipoibd run"},
	{"another process", busy, func(f *Facts) {
		f.iface().State, f.iface().Reason = "waiting", "foreign_process"
		f.Interfaces[0].Holders = []Holder{{9, "qemu"}}
	}, "foreign_process", "qemu (pid 9)", "kill 9"},
	{"an invisible process", busy, func(f *Facts) {
		f.iface().State, f.iface().Reason, f.iface().Detail = "waiting", "foreign_process", "grep"
	}, "foreign_process", "grep", ""},
	{"set down", busy, func(f *Facts) { f.iface().State, f.iface().Reason, f.Netdev("ib0").Up = "down", "admin_down", false }, "interface_down", "", "ip link set ib0 up"},
	{"no carrier of ib0", busy, func(f *Facts) { f.iface().Carrier = false }, "interface_not_ready", "no carrier", "ipoibd events --control /run/c.sock"},
	{"a route is refused", busy, func(f *Facts) { f.iface().Unassigned = "route: refused" }, "interface_unassigned", "route: refused", "ip address show dev ib0"},
	{"a duplicate underlay address", busy, noticing("duplicate_address"), "duplicate_address", "the text of duplicate_address", "ip address show dev eth0"},
	{"a forged underlay address", busy, func(f *Facts) { f.count("rx_own_source", 1, 3) }, "duplicate_address", "rx_own_source is 3, 2 more than 1s before", ""},
	{"a firewall", busy, func(f *Facts) {
		noticing("firewall")(f)
		f.lonely()
		noticing("silent")(f)
		f.device().Peers = []netip.Addr{peer}
	}, "firewall_out", "", "nft list ruleset"},
	{"a firewall, inbound", busy, func(f *Facts) { f.Drops = []FirewallRule{{"inet", "f", "i", "4", "udp dport 4791 drop"}} }, "firewall_in", "udp dport 4791 drop", "nft delete rule inet f i handle 4"},
	{"families", busy, func(f *Facts) { f.device().Peers = []netip.Addr{netip.MustParseAddr("fd00::2")} }, "family_mismatch", "all peers are IPv6, such as fd00::2", ""},
	{"one of the family is enough", busy, func(f *Facts) { f.device().Peers = []netip.Addr{netip.MustParseAddr("fd00::2"), peer} }, "", "", ""},
	{"NAT", busy, noticing("nat"), "nat", "the text of nat", ""},
	{"no multicast", busy, func(f *Facts) { f.Netdev("eth0").Multicast = false }, "multicast_off", "MULTICAST", "ip link set eth0 multicast on"},
	{"no multicast, peers", busy, func(f *Facts) { f.Netdev("eth0").Multicast, f.device().Replicates = false, true }, "", "", ""},
	{"a name", busy, noticing(NoticeUnresolved), "unresolved_peer", "the text of", ""},
	{"another P_Key", busy, func(f *Facts) { f.lonely(); f.count("rx_other_pkey", 4, 4) }, "pkey_mismatch", "rx_other_pkey is 4, 0 more than 1s before; no peer is known; this host has 0xffff", "ipoibd run --pkey P_KEY"},
	{"other partitions", busy, func(f *Facts) { f.count("rx_other_pkey", 4, 9) }, "", "", ""},
	{"another Q_Key", busy, func(f *Facts) { f.count("rx_drop_qkey", 0, 1) }, "qkey_mismatch", "rx_drop_qkey is 1", "ipoibd status -v --control /run/c.sock"},
	{"a stranger", busy, func(f *Facts) { f.count("rx_drop_unknown_peer", 0, 1) }, "unknown_peer", "rx_drop_unknown_peer is 1", "tcpdump -ni eth0 udp port 4791"},
	{"strangers, long ago", busy, func(f *Facts) { f.count("rx_drop_unknown_peer", 9, 9) }, "", "", ""},
	{"only one has peers", busy, func(f *Facts) { f.lonely(); f.count("rx_drop_no_qp", 2, 2) }, "one_sided_peer", "rx_drop_no_qp is 2", "ipoibd run --peer ADDRESS"},
	{"a restarted peer", busy, func(f *Facts) { f.device().Replicates = true; f.count("rx_drop_no_qp", 2, 3) }, "drops", "rx_drop_no_qp grew by 1 to 3", ""},
	{"counters of another opening", busy, func(f *Facts) { f.device().Opens = 2; f.count("rx_drop_no_qp", 9, 3) }, "", "", ""},
	{"no daemon there", busy, func(f *Facts) { f.device().Peers = []netip.Addr{peer}; f.count("wire_icmp_errors", 0, 1) }, "peer_refuses", "the peers are 192.0.2.2", "ip route get 192.0.2.2"},
	{"no route", busy, func(f *Facts) { f.lonely(); f.count("wire_tx_drop_no_route", 2, 2) }, "peer_refuses", "wire_tx_drop_no_route is 2", ""},
	{"no route to one", busy, func(f *Facts) { f.count("wire_tx_packets", 90, 99); f.count("wire_tx_drop_no_route", 2, 3) }, "peer_refuses", "1 more", ""},
	{"the underlay was down", busy, func(f *Facts) {
		f.lonely()
		f.count("wire_tx_packets", 9, 9)
		f.count("wire_tx_drop_no_route", 2, 2)
	}, "", "", ""},
	{"no peer answers", busy, func(f *Facts) {
		noticing("silent")(f)
		f.device().Peers = slices.Repeat([]netip.Addr{peer}, 10)
		f.device().Replicates = true
	}, "no_peer_answers", "192.0.2.2, 2 more", "ping -c 3 192.0.2.2"},
	{"DAD", busy, func(f *Facts) {
		f.Netdev("ib0").Addrs = append(f.Netdev("ib0").Addrs, Addr{netip.MustParsePrefix("fd09::1/64"), true})
	}, "address_duplicate", "fd09::1/64", "ip address del fd09::1/64 dev ib0"},
	{"the same network, running", busy, func(f *Facts) { f.Netdev("ib0").Addrs[0].Prefix = netip.MustParsePrefix("192.0.0.1/16") }, "address_overlap", "192.0.0.1/16", ""},
	{"no address of ib0", busy, func(f *Facts) { f.Netdev("ib0").Addrs = []Addr{{netip.MustParsePrefix("fe80::1/64"), false}} }, "no_address", "ib0", "ip address add ADDRESS/PREFIX dev ib0"},
	{"no address of ib0 in a bridge", busy, func(f *Facts) { f.Netdev("ib0").Addrs, f.Netdev("ib0").Master = nil, "br0" }, "", "", ""},
	{"ib0 in a container", busy, func(f *Facts) { f.Netdevs = f.Netdevs[:2] }, "", "", ""},
	{"a narrow path", busy, func(f *Facts) {
		f.iface().Notices.Add("path_mtu", "narrow")
		f.iface().Peers = []report.Peer{{IPs: []string{"10.0.0.3"}}, {GID: hca.GIDFromAddr(peer), IPs: []string{"10.0.0.2"}}}
		f.device().Ports = []report.Port{{Num: 1, PortAttr: hca.PortAttr{GIDs: []hca.GIDEntry{{Path: hca.PathLimit{To: peer, Carries: 1248}}}}}}
	}, "path_mtu", "narrow", "ipoibd ping --sweep 10.0.0.2"},
	{"a narrow path, of another GID", busy, func(f *Facts) { f.iface().Notices.Add("path_mtu", "narrow"); f.iface().QP.GIDIndex = 5 }, "path_mtu", "narrow", ""},
	{"a full neighbour table", busy, func(f *Facts) {
		f.NeighboursEarlier = []NeighbourTable{{"arp_cache", 1000, 1024, 5}, {"ndisc_cache", 1024, 1024, 7}}
		f.Neighbours = []NeighbourTable{{"arp_cache", 1024, 1024, 12}, {"ndisc_cache", 1024, 1024, 7}}
	}, "neighbours_full", "arp_cache has 1024 entries of at most 1024, and had no room for 7 more", "sysctl -w net.ipv4.neigh.default.gc_thresh2=8192 net.ipv4.neigh.default.gc_thresh3=16384"},
	{"few files are left", busy, func(f *Facts) { f.Status.FDs, f.Process.Files = 49, 59 }, "files_nearly_exhausted", "49 are open, RLIMIT_NOFILE is 59", "prlimit --pid 7 --nofile=4096"},
	{"files", busy, func(f *Facts) { f.Status.FDs = 922 }, "files_nearly_exhausted", "922 are open, RLIMIT_NOFILE is 1024", "prlimit --pid 7 --nofile=4096"},
	{"files are not counted", busy, func(f *Facts) { f.Status.FDs = -1 }, "", "", ""},
	{"an old daemon", busy, func(f *Facts) { f.Version = "v2" }, "other_version", "the daemon is v1, this program v2", "kill 7 && ipoibd run"},
	{"a small send buffer", busy, noticing("send_buffer"), "send_buffer", "the text of", "sysctl -w net.core.wmem_max=134217728"},
	{"a small MTU", busy, func(f *Facts) { f.iface().Notices.Add("no_ipv6", "below 1280") }, "no_ipv6", "below 1280 (it is 1444)", "ip link set eth0 mtu 1500"},
	{"lost interrupts", busy, func(f *Facts) { f.iface().Notices.Add("events_lost", "packets wait") }, "events_lost", "packets wait", "ipoibd reset device --device soft"},
	{"many guests", busy, func(f *Facts) { f.iface().Notices.Add("stations_full", "as many MACs") }, "stations_full", "as many MACs", "ipoibd status -v"},
	{"many groups", busy, func(f *Facts) { f.iface().Notices.Add("groups_unserved", "3 multicast groups") }, "groups_unserved", "3 multicast groups", "ipoibd status -v"},
	{"one socket", busy, noticing("one_socket"), "one_socket", "the text of", ""},
	{"no segmentation", busy, noticing("no_segmentation"), "no_segmentation", "the text of", "ethtool -k eth0"},
	{"alone", busy, func(f *Facts) { f.lonely(); noticing("silent")(f) }, "alone", "the text of", "ipoibd run --peer ADDRESS"},
	{"the clock", busy, func(f *Facts) { f.ClockStep = -time.Hour }, "clock_stepped", "1h0m0s", "ipoibd events --control /run/c.sock"},
	{"a slow start", busy, func(f *Facts) { f.ClockStep = -9 * time.Second }, "", "", ""},
	{"a newer daemon", busy, noticing("of_the_future"), "other_notice", "the text of", ""},
	{"two interfaces of a device with a trouble each", busy, func(f *Facts) {
		f.iface().State, f.iface().Reason, f.iface().Carrier = report.InterfaceDown, report.ReasonAdminDown, false
		other := *f.iface()
		other.Name, other.State, other.Reason, other.Detail = "ib1", report.InterfaceWaiting, report.ReasonPort, "no subnet manager"
		f.Status.Interfaces = append(f.Status.Interfaces, other)
	}, "interface_down interface_not_ready", "admin_down", "ip link set ib0 up"},
	{"the most important one is first", idle, func(f *Facts) {
		f.UnknownVariables, f.Tun, f.NoTun, f.Netdev("eth0").Up = []string{"IPOIBD_X"}, link.ErrNoTun, true, false
	}, "tun_missing underlay_down unknown_variable", "", ""},
}

func TestDiagnose(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range diagnoses {
		t.Run(c.name, func(t *testing.T) {
			f := c.facts()
			c.change(f)
			found := Diagnose(f)
			var ids []string
			for _, x := range found {
				ids = append(ids, x.ID)
				seen[x.ID] = true
				if x.What == "" || x.Evidence == "" || x.Advice == "" || strings.Contains(x.What+x.Evidence+x.Advice+x.Command, "{") {
					t.Errorf("incomplete: %+v", x)
				}
			}
			if got := strings.Join(ids, " "); got != c.want {
				t.Fatalf("found %q, want %q: %+v", got, c.want, found)
			}
			if len(found) == 0 {
				return
			}
			if x := found[0]; !strings.Contains(x.Evidence, c.evidence) || !strings.Contains(x.Command, c.command) {
				t.Errorf("evidence %q, command %q; want %q, %q", x.Evidence, x.Command, c.evidence, c.command)
			}
		})
	}
	for _, id := range ids() {
		if !seen[id] {
			t.Errorf("no case finds %s", id)
		}
	}
}

var severities = []Severity{Error, Warning, Hint}

// ids returns the IDs of all findings, in the order of the rules.
func ids() (all []string) {
	for _, r := range rules {
		all = append(all, r.id)
	}
	return all
}

// Errors come before warnings, and these before hints. A cause comes before what it explains, since
// rules look only at what was found before them.
func TestOrderOfRules(t *testing.T) {
	for i, r := range rules {
		if i > 0 && slices.Index(severities, r.severity) < slices.Index(severities, rules[i-1].severity) {
			t.Errorf("%s, %s, comes after %s, %s", r.id, r.severity, rules[i-1].id, rules[i-1].severity)
		}
		for _, cause := range r.because {
			if j := slices.Index(ids(), cause); j < 0 || j >= i {
				t.Errorf("%s: its cause %s is at %d, itself at %d", r.id, cause, j, i)
			}
		}
		if slices.Index(ids(), r.id) != i {
			t.Errorf("%s occurs twice", r.id)
		}
	}
}

// Whatever a process on the control socket claims, doctor examines it, and each finding is complete.
func FuzzDiagnose(f *testing.F) {
	for _, s := range []*report.Status{status(), {}} {
		text, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var s report.Status
		if json.Unmarshal(text, &s) != nil {
			return
		}
		facts := busy()
		facts.Status = &s
		facts.Devices, facts.Interfaces = nil, nil
		for _, d := range s.Devices {
			facts.Devices = append(facts.Devices, Device{Name: d.Name, HCA: d.HCA, Software: d.HCA == "soft", Underlay: d.Underlay})
		}
		for _, x := range s.Interfaces {
			facts.Interfaces = append(facts.Interfaces, Interface{Name: x.Name, Device: x.Device})
		}
		for _, x := range Diagnose(facts) {
			if x.What == "" || x.Advice == "" {
				t.Errorf("incomplete: %+v", x)
			}
		}
	})
}

// docs/doctor.schema.json has all IDs and severities, in their order.
func TestSchemaHasAllFindings(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/doctor.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Findings struct {
				Items struct {
					Properties struct {
						ID       struct{ Enum []string }
						Severity struct{ Enum []Severity }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	p := schema.Properties.Findings.Items.Properties
	if !slices.Equal(p.ID.Enum, ids()) {
		t.Errorf("the schema has %q, the rules %q", p.ID.Enum, ids())
	}
	if !slices.Equal(p.Severity.Enum, severities) {
		t.Errorf("severities %q, want %q", p.Severity.Enum, severities)
	}
}
