package diagnose

import (
	"fmt"
	"strings"

	"ipoibd/cmd/ipoibd/internal/report"
)

// startRules are about what keeps a daemon from running, or its devices from being opened.
var startRules = []rule{
	{"config_mistake", Error, host, func(s *subject) bool { return s.fails(s.Mistake) }, nil, texts{
		"the configuration has mistakes, so 'ipoibd run' refuses it", "{error}",
		"correct them, and run 'ipoibd doctor' again with the same flags", "",
	}},
	{"socket_denied", Error, about("{control}", host), socketIs(SocketDenied), nil, texts{
		"this user may not query the daemon", "{error}",
		"run the command as root, or as the daemon's user", "sudo ipoibd doctor --control {control}",
	}},
	{"socket_blocked", Error, about("{control}", host), socketIs(SocketBlocked), nil, texts{
		"the path of the control socket belongs to something that is not a socket", "{error}",
		"move it away, or choose another path with --control", "mv {control} {aside}",
	}},
	{"socket_garbage", Error, about("{control}", host), socketIs(SocketGarbage), nil, texts{
		"the process that answers on the control socket is not an ipoibd daemon, or is one of an incompatible version",
		"{error} (process {pid}) | {error}",
		"stop that process, or choose another path with --control", "kill {pid}",
	}},
	{"daemon_hangs", Error, host, socketIs(SocketHangs), nil, texts{
		"the daemon is {stopped} | the daemon does not answer",
		"{error}; process {pid} is in the state T ({stopped} by a signal) | {error}",
		"let the {stopped} process continue | " + quit, "kill -CONT {stopped_pid} | kill -QUIT {pid}",
	}},
	{"service_failed", Error, about("ipoibd.service", unstarted), serviceFailed, nil, texts{
		"the service does not start", "ActiveState={active} Result={result} NRestarts={restarts}",
		"see its log", "journalctl -u ipoibd -n 20",
	}},
	{"daemon_ended", Error, about("{control}", host), socketIs(SocketStale), []string{"service_failed"}, texts{
		"the daemon ended without removing its control socket, so it was killed, or it crashed", "{error}",
		"start it again; the new daemon takes over the socket and the interfaces", restart,
	}},
	{"control_unwritable", Error, about("{control}", unstarted), noControl, badSocket, texts{
		"the control socket cannot be created", "{error}",
		"run as root, make room, or choose another path with --control", "ipoibd run --control /PATH/control.sock",
	}},
	{"tun_missing", Error, about("/dev/net/tun", unstarted), tunMissing, nil, texts{
		"the kernel's TUN/TAP device is missing", "{error}",
		"load the driver; a container needs --device /dev/net/tun", "modprobe tun",
	}},
	{"no_net_admin", Error, unstarted, noNetAdmin, nil, texts{
		"the capability CAP_NET_ADMIN is missing, without which no interface can be created",
		"the effective capabilities of this process (user {user}) are {caps}",
		"run as root; a container needs --cap-add NET_ADMIN, a systemd unit AmbientCapabilities=CAP_NET_ADMIN",
		"{sudo} ipoibd run",
	}},
	{"tun_denied", Error, about("/dev/net/tun", unstarted), tunDenied, nil, texts{
		"this user may not open the TUN/TAP device", "{error}",
		"correct its mode; a container needs --device /dev/net/tun, because its runtime may forbid other devices; on " +
			"a file system mounted with nodev, no device can be opened",
		"chmod 0666 /dev/net/tun",
	}},
	{"few_files", Error, unstarted, fewFiles, nil, texts{
		"the limit of open files is too low for a daemon", "RLIMIT_NOFILE is {files}; a daemon needs up to {needed}",
		"raise it (a systemd unit: LimitNOFILE=)", "ulimit -n 1024",
	}},
	{"underlay_unclear", Error, about("{device}", hcas), underlayUnclear, nil, texts{
		"it is not clear which netdev the software HCA should use", "{error}",
		"name the netdev that leads to the other hosts", "ipoibd run --underlay NETDEV",
	}},
	{"underlay_missing", Error, underlays, underlayMissing, nil, texts{
		"the underlay does not exist in this network namespace", "there is no {subject} among {netdevs}",
		"name another netdev with --underlay, or create this one", "ip -brief link",
	}},
	{"underlay_loopback", Error, hereUnderlays, func(s *subject) bool { return s.netdev.Loopback }, nil, texts{
		"the underlay is a loopback, which leads to no other host", "{subject} has the flag LOOPBACK",
		"name the netdev that leads to the other hosts", "ipoibd run --underlay NETDEV",
	}},
	{"underlay_down", Error, hereUnderlays, func(s *subject) bool { return !s.netdev.Up }, nil, texts{
		"the underlay is down", "{subject} lacks the flag UP",
		"bring it up", "ip link set {subject} up",
	}},
	{"underlay_no_carrier", Error, hereUnderlays, underlayNoCarrier, nil, texts{
		"the underlay has no carrier", "{subject} lacks the flag LOWER_UP",
		"check its cable, its switch port, or the other end of a virtual link", "ethtool {subject}",
	}},
	{"underlay_no_address", Error, hereUnderlays, underlayNoAddress, nil, texts{
		"the underlay has no IP address, so the software HCA has no GID", "{subject} has no address",
		"give it one", "ip address add ADDRESS/PREFIX dev {subject}",
	}},
	{"hca_missing", Error, hcas, hcaMissing, nil, texts{
		"the HCA does not exist", "the kernel has only {present} | the kernel has no RDMA device",
		"load the adapter's driver, or create a Soft-RoCE device; 'ipoibd devices' lists the HCAs",
		"rdma link add {subject} type rxe netdev NETDEV",
	}},
	{"hca_unusable", Error, hcas, hcaUnusable, nil, texts{
		"the HCA cannot be used", "{trouble}",
		"fix the problem shown above, then list the HCAs again", "ipoibd devices",
	}},
	{"memlock_low", Error, hcas, memlockLow, nil, texts{
		"the limit of locked memory is too low for a real HCA",
		"RLIMIT_MEMLOCK is {limit} bytes, the interfaces of the HCA need about {needed} ({each} each), and the " +
			"capability CAP_IPC_LOCK is missing",
		"raise the limit, or grant CAP_IPC_LOCK (a systemd unit: LimitMEMLOCK=infinity; a container: --ulimit " +
			"memlock=-1)",
		"ulimit -l unlimited",
	}},
	{"port_taken", Error, underlays, portTaken, noUnderlay, texts{
		"UDP port 4791, which the software HCA needs, is already in use", "{error}",
		"stop what uses it, serve all interfaces of an underlay with one daemon, or run this one in another network " +
			"namespace",
		"kill {holder} | rmmod {module} | ss -ulpn sport = :4791",
	}},
	{"name_taken", Error, interfaces, nameTaken, nil, texts{
		"another interface has this name", "{error}",
		"choose another name; the kernel's own IPoIB (ib_ipoib) also names its interfaces ib0",
		"ipoibd run --name ib1",
	}},
	{"name_in_use", Error, interfaces, nameInUse, nil, texts{
		"another daemon serves the interface", "{error}",
		"run doctor with the --control of that daemon, which is on its command line or in its configuration file; or stop " +
			"that daemon",
		"ps -o args= -p {owner}",
	}},
}

// quit is the advice about a daemon that hangs.
const quit = "send the daemon SIGQUIT: it logs what each goroutine waits for, and exits; then start it again " +
	"(systemd does that by itself)"

// fails reports whether there is an error, and adds it to the words.
func (s *subject) fails(err error) bool { return s.sayIf(err != nil, "error", err) }

// socketIs returns whether the control socket is in a state.
func socketIs(state SocketState) func(*subject) bool {
	return func(s *subject) bool {
		x := s.Socket
		s.sayIf(x.Stopped, "stopped", "stopped", "stopped_pid", x.PID)
		s.say("aside", x.Path+".old")
		return x.State == state && s.fails(x.Err)
	}
}

func serviceFailed(s *subject) bool {
	x := s.Service
	s.say("active", x.Active, "result", x.Result, "restarts", x.Restarts)
	again := x.Active == "activating" && x.Restarts != "0" // else it has only just been started
	return x.Active == "failed" || again
}

func noControl(s *subject) bool { return s.fails(s.Control) }

func tunMissing(s *subject) bool { return s.NoTun && s.fails(s.Tun) }

func tunDenied(s *subject) bool { return !s.NoTun && s.fails(s.Tun) }

// capability is a number of capabilities(7).
type capability uint

// Capabilities (linux/capability.h).
const (
	capNetAdmin capability = 12
	capIPCLock  capability = 14
	capSysAdmin capability = 21
	capPerfmon  capability = 38
	capBPF      capability = 39
)

// lacks reports whether the process is known, and does not have a capability.
func (p Process) lacks(c capability) bool { return p.Known() && p.Caps&(1<<c) == 0 }

func noNetAdmin(s *subject) bool {
	p := s.Process
	s.say("user", p.UID, "caps", fmt.Sprintf("%#x", p.Caps))
	s.sayIf(p.UID != 0, "sudo", "sudo")
	return p.lacks(capNetAdmin)
}

// minFiles is twice the number of files that a daemon with one interface has open.
const minFiles = 64

func fewFiles(s *subject) bool {
	return s.sayIf(s.Process.Known() && s.Process.Files < minFiles, "files", s.Process.Files, "needed", minFiles)
}

func underlayUnclear(s *subject) bool { return s.fails(s.hca.Unclear) }

func underlayMissing(s *subject) bool {
	var names []string
	for _, n := range s.Netdevs {
		names = append(names, n.Name)
	}
	return s.netdev == nil && s.sayIf(len(names) > 0, "netdevs", strings.Join(names, ", "))
}

func underlayNoCarrier(s *subject) bool { return s.netdev.Up && !s.netdev.Carrier }

func underlayNoAddress(s *subject) bool {
	return len(s.netdev.Addrs) == 0 && !s.netdev.Loopback && s.netdev.Up
}

func hcaMissing(s *subject) bool {
	s.sayIf(len(s.hca.Present) > 0, "present", strings.Join(s.hca.Present, ", "))
	return s.hca.Missing
}

func hcaUnusable(s *subject) bool {
	return s.sayIf(len(s.hca.Trouble) > 0, "trouble", strings.Join(s.hca.Trouble, "; "))
}

// memoryOfInterface is what an interface locks on a real HCA, with queues of the default length, in
// bytes (docs/hardware.md).
const memoryOfInterface = 43_000_000

func memlockLow(s *subject) bool {
	if s.hca.Software || !s.Process.lacks(capIPCLock) {
		return false
	}
	if d := s.reported(s.device); d != nil && d.State == report.DeviceOpen {
		return false // it was opened by a process that may have given the capability up since
	}
	needed := uint64(0)
	for _, x := range s.Interfaces {
		if x.Device == s.device {
			needed += memoryOfInterface
		}
	}
	s.say("limit", s.Process.Memlock, "needed", needed, "each", memoryOfInterface)
	return s.Process.Memlock < needed
}

func portTaken(s *subject) bool {
	taken := s.hca.Taken
	if s.Started() || taken == nil {
		return false
	}
	if len(taken.Holders) == 1 {
		s.say("holder", taken.Holders[0].PID)
	}
	s.sayIf(taken.Module != "", "module", taken.Module)
	return s.fails(taken.Err)
}

func nameTaken(s *subject) bool {
	return !s.Started() && s.iface.Claim.Foreign && s.fails(s.iface.Claim.Err)
}

func nameInUse(s *subject) bool {
	c := s.iface.Claim
	s.sayIf(c.Owner != 0, "owner", c.Owner)
	return !s.Started() && c.Owned && s.fails(c.Err)
}
