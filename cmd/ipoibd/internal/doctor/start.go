package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/soft/udp"
	"ipoibd/link"
)

func configMistake(f *Facts) []Finding {
	if f.Mistake == nil {
		return nil
	}
	return []Finding{{What: "the configuration has mistakes, so 'ipoibd run' refuses it", Evidence: f.Mistake.Error(), Advice: "correct them, and run 'ipoibd doctor' again with the same flags"}}
}

func unknownVariable(f *Facts) (out []Finding) {
	for _, name := range f.UnknownVariables {
		out = append(out, Finding{
			Subject: name, What: "the environment variable belongs to no flag of 'ipoibd run', so it is ignored", Evidence: name + " is set",
			Advice: "correct its spelling ('ipoibd run --help' lists the flags), or remove it", Command: report.Command("unset %s", name),
		})
	}
	return out
}

func socketDenied(f *Facts) []Finding {
	if f.Socket.State != SocketDenied {
		return nil
	}
	return []Finding{{
		Subject: f.Socket.Path, What: "this user may not query the daemon", Evidence: f.Socket.Err.Error(),
		Advice: "run the command as root, or as the daemon's user", Command: report.Command("sudo ipoibd doctor --control %s", f.Socket.Path),
	}}
}

func socketBlocked(f *Facts) []Finding {
	if f.Socket.State != SocketBlocked {
		return nil
	}
	return []Finding{{
		Subject: f.Socket.Path, What: "the path of the control socket belongs to something that is not a socket", Evidence: f.Socket.Err.Error(),
		Advice: "move it away, or choose another path with --control", Command: report.Command("mv %s %s", f.Socket.Path, f.Socket.Path+".old"),
	}}
}

func socketGarbage(f *Facts) []Finding {
	if f.Socket.State != SocketGarbage {
		return nil
	}
	x := Finding{
		Subject: f.Socket.Path, What: "the process that answers on the control socket is not an ipoibd daemon, or is one of an incompatible version", Evidence: f.Socket.Err.Error(),
		Advice: "stop that process, or choose another path with --control",
	}
	if f.Socket.PID != 0 {
		x.Evidence, x.Command = fmt.Sprintf("%s (process %d)", x.Evidence, f.Socket.PID), report.Command("kill %d", f.Socket.PID)
	}
	return []Finding{x}
}

func daemonHangs(f *Facts) []Finding {
	if f.Socket.State != SocketHangs {
		return nil
	}
	x := Finding{What: "the daemon does not answer", Evidence: f.Socket.Err.Error(), Advice: "send it SIGQUIT: it logs what each goroutine waits for, and exits; then start it again (systemd does that by itself)"}
	switch {
	case f.Socket.Stopped:
		x.What, x.Evidence = "the daemon is stopped", fmt.Sprintf("%v; process %d is in the state T (stopped by a signal)", f.Socket.Err, f.Socket.PID)
		x.Advice, x.Command = "let it continue", report.Command("kill -CONT %d", f.Socket.PID)
	case f.Socket.PID != 0:
		x.Command = report.Command("kill -QUIT %d", f.Socket.PID)
	}
	return []Finding{x}
}

func daemonEnded(f *Facts) []Finding {
	if f.Socket.State != SocketStale {
		return nil
	}
	return []Finding{{
		Subject: f.Socket.Path, What: "the daemon ended without removing its control socket, so it was killed, or it crashed", Evidence: f.Socket.Err.Error(),
		Advice: "start it again; the new daemon takes over the socket and the interfaces", Command: f.restart(),
	}}
}

// restart returns a command that starts the daemon again.
func (f *Facts) restart() string {
	switch {
	case f.Service.Active != "":
		return "systemctl restart ipoibd"
	case f.Status != nil && f.Socket.PID != 0:
		return report.Command("kill %d && ipoibd run", f.Socket.PID)
	}
	return "ipoibd run"
}

func serviceFailed(f *Facts) []Finding {
	s := f.Service
	again := s.Active == "activating" && s.Restarts != "0" // else it has only just been started
	if f.started() || s.Active != "failed" && !again {
		return nil
	}
	return []Finding{{
		Subject: "ipoibd.service", What: "the service does not start", Evidence: fmt.Sprintf("ActiveState=%s Result=%s NRestarts=%s", s.Active, s.Result, s.Restarts),
		Advice: "see its log", Command: "journalctl -u ipoibd -n 20",
	}}
}

func controlUnwritable(f *Facts) []Finding {
	if f.started() || f.Control == nil {
		return nil
	}
	return []Finding{{
		Subject: f.Socket.Path, What: "the control socket cannot be created", Evidence: f.Control.Error(),
		Advice: "run as root, make room, or choose another path with --control", Command: "ipoibd run --control /PATH/control.sock",
	}}
}

func tunMissing(f *Facts) []Finding {
	if f.started() || !errors.Is(f.Tun, link.ErrNoTun) {
		return nil
	}
	return []Finding{{
		Subject: "/dev/net/tun", What: "the kernel's TUN/TAP device is missing", Evidence: f.Tun.Error(),
		Advice: "load the driver; a container needs --device /dev/net/tun", Command: "modprobe tun",
	}}
}

func tunDenied(f *Facts) []Finding {
	if f.started() || f.Tun == nil || errors.Is(f.Tun, link.ErrNoTun) {
		return nil
	}
	return []Finding{{
		Subject: "/dev/net/tun", What: "this user may not open the TUN/TAP device", Evidence: f.Tun.Error(),
		Advice:  "correct its mode; a container needs --device /dev/net/tun, because its runtime may forbid other devices; on a file system mounted with nodev, no device can be opened",
		Command: "chmod 0666 /dev/net/tun",
	}}
}

func noNetAdmin(f *Facts) []Finding {
	if f.started() || !f.Process.known() || f.Process.has(unix.CAP_NET_ADMIN) {
		return nil
	}
	x := Finding{
		What: "the capability CAP_NET_ADMIN is missing, without which no interface can be created", Evidence: fmt.Sprintf("the effective capabilities of this process (user %d) are %#x", f.Process.UID, f.Process.Caps),
		Advice: "run as root; a container needs --cap-add NET_ADMIN, a systemd unit AmbientCapabilities=CAP_NET_ADMIN",
	}
	if f.Process.UID != 0 {
		x.Command = "sudo ipoibd run"
	}
	return []Finding{x}
}

// minFiles is twice the number of files that a daemon with one interface has open.
const minFiles = 64

func fewFiles(f *Facts) []Finding {
	if f.started() || !f.Process.known() || f.Process.Files >= minFiles {
		return nil
	}
	return []Finding{{
		What: "the limit of open files is too low for a daemon", Evidence: fmt.Sprintf("RLIMIT_NOFILE is %d; a daemon needs up to %d", f.Process.Files, minFiles),
		Advice: "raise it (a systemd unit: LimitNOFILE=)", Command: "ulimit -n 1024",
	}}
}

func portTaken(f *Facts) (out []Finding) {
	for _, d := range f.Devices {
		taken, is := errors.AsType[*udp.PortTakenError](d.Bind)
		if f.started() || !is {
			continue
		}
		x := Finding{
			device: d.Name, Subject: d.Underlay, What: "UDP port 4791, which the software HCA needs, is already in use", Evidence: taken.Error(),
			Advice: "stop what uses it, serve all interfaces of an underlay with one daemon, or run this one in another network namespace", Command: "ss -ulpn sport = :4791",
		}
		switch pid := pidIn(taken.Holders); {
		case pid != "":
			x.Command = report.Command("kill %s", pid)
		case taken.Kernel != "":
			x.Command = report.Command("rmmod %s", taken.Kernel)
		}
		out = append(out, x)
	}
	return out
}

// pidIn returns the PID in the name of the only holder, "name (pid 123)", or "".
func pidIn(holders []string) string {
	if len(holders) != 1 {
		return ""
	}
	_, pid, _ := strings.Cut(holders[0], "(pid ")
	return strings.TrimSuffix(pid, ")")
}

func nameTaken(f *Facts) (out []Finding) {
	for _, x := range f.Interfaces {
		if !f.started() && errors.Is(x.Available, link.ErrNameTaken) {
			out = append(out, Finding{
				device: x.Device, Subject: x.Name, What: "another interface has this name", Evidence: x.Available.Error(),
				Advice: "choose another name; the kernel's own IPoIB (ib_ipoib) also names its interfaces ib0", Command: "ipoibd run --name ib1",
			})
		}
	}
	return out
}

func nameInUse(f *Facts) (out []Finding) {
	for _, x := range f.Interfaces {
		owned, is := errors.AsType[*link.OwnedError](x.Available)
		if f.started() || !is {
			continue
		}
		finding := Finding{
			device: x.Device, Subject: x.Name, What: "another daemon serves the interface", Evidence: x.Available.Error(),
			Advice: "run doctor with the --control of that daemon, or stop that daemon",
		}
		if owned.PID != 0 {
			finding.Command = report.Command("kill %d", owned.PID)
		}
		out = append(out, finding)
	}
	return out
}

func hcaMissing(f *Facts) (out []Finding) {
	for _, d := range f.Devices {
		if !d.Missing {
			continue
		}
		evidence := "the kernel has no RDMA device"
		if len(d.Present) > 0 {
			evidence = "the kernel has only " + strings.Join(d.Present, ", ")
		}
		out = append(out, Finding{
			device: d.Name, Subject: d.HCA, What: "the HCA does not exist", Evidence: evidence,
			Advice: "load the adapter's driver, or create a Soft-RoCE device; 'ipoibd devices' lists the HCAs", Command: report.Command("rdma link add %s type rxe netdev NETDEV", d.HCA),
		})
	}
	return out
}

func hcaUnusable(f *Facts) (out []Finding) {
	for _, d := range f.Devices {
		if len(d.Trouble) > 0 {
			out = append(out, Finding{
				device: d.Name, Subject: d.HCA, What: "the HCA cannot be used", Evidence: strings.Join(d.Trouble, "; "),
				Advice: "correct what the evidence names; then list the HCAs again", Command: "ipoibd devices",
			})
		}
	}
	return out
}

// memoryOfInterface is what an interface locks on a real HCA, with queues of the default length, in
// bytes (docs/hardware.md).
const memoryOfInterface = 43_000_000

func memlockLow(f *Facts) (out []Finding) {
	for _, d := range f.Devices {
		n := uint64(0)
		for _, x := range f.Interfaces {
			if x.Device == d.Name {
				n++
			}
		}
		p := f.Process
		opened := slices.ContainsFunc(f.reported(), func(t traffic) bool { return t.device.Name == d.Name && t.device.State == report.DeviceOpen })
		if opened { // by a process that may have given the capability up since
			continue
		}
		if d.Software || !p.known() || p.has(unix.CAP_IPC_LOCK) || p.Memlock >= n*memoryOfInterface {
			continue
		}
		out = append(out, Finding{
			device: d.Name, Subject: d.HCA, What: "the limit of locked memory is too low for a real HCA",
			Evidence: fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, the interfaces of the HCA need about %d (%d each), and the capability CAP_IPC_LOCK is missing", p.Memlock, n*memoryOfInterface, memoryOfInterface),
			Advice:   "raise the limit, or grant CAP_IPC_LOCK (a systemd unit: LimitMEMLOCK=infinity; a container: --ulimit memlock=-1)", Command: "ulimit -l unlimited",
		})
	}
	return out
}

func noEBPF(f *Facts) (out []Finding) {
	without := func(evidence string) Finding {
		return Finding{
			What: "without eBPF programs, the daemon receives every frame, even those that IPoIB cannot carry", Evidence: evidence,
			Advice: "grant CAP_BPF and CAP_PERFMON (a container: --cap-add BPF --cap-add PERFMON) and restart the daemon, or switch eBPF off", Command: "ipoibd run --ebpf=false",
		}
	}
	if f.Status != nil { // the daemon has dropped the capabilities
		return f.interfaces(func(x *report.Interface) *Finding {
			if x.NoEBPF == "" {
				return nil
			}
			finding := without(x.NoEBPF)
			return &finding
		})
	}
	p := f.Process
	if !p.known() || p.has(unix.CAP_SYS_ADMIN) || p.has(unix.CAP_BPF) && p.has(unix.CAP_PERFMON) {
		return nil
	}
	for _, x := range f.Interfaces {
		if x.EBPF {
			finding := without(fmt.Sprintf("the effective capabilities are %#x, without CAP_BPF and CAP_PERFMON", p.Caps))
			finding.device, finding.Subject = x.Device, x.Name
			out = append(out, finding)
		}
	}
	return out
}
