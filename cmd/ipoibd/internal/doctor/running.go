package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// devices calls each with the devices of the daemon.
func (f *Facts) devices(each func(d *report.Device) *Finding) (out []Finding) {
	if f.Status == nil {
		return nil
	}
	for i := range f.Status.Devices {
		d := &f.Status.Devices[i]
		if x := each(d); x != nil {
			x.device, x.Subject = d.Name, d.Name
			out = append(out, *x)
		}
	}
	return out
}

// interfaces calls each with the interfaces of the daemon.
func (f *Facts) interfaces(each func(x *report.Interface) *Finding) (out []Finding) {
	if f.Status == nil {
		return nil
	}
	for i := range f.Status.Interfaces {
		s := &f.Status.Interfaces[i]
		if x := each(s); x != nil {
			x.device, x.Subject = s.Device, s.Name
			out = append(out, *x)
		}
	}
	return out
}

func deviceSuspended(f *Facts) []Finding {
	return f.devices(func(d *report.Device) *Finding {
		if d.State != qprecovery.DeviceSuspended.String() {
			return nil
		}
		return &Finding{What: "the device was closed by 'ipoibd suspend', or before the system slept", Evidence: since(d), Advice: "open it again", Command: f.asks("resume")}
	})
}

func deviceGivenUp(f *Facts) []Finding {
	return f.devices(func(d *report.Device) *Finding {
		if d.State != qprecovery.DeviceGivenUp.String() {
			return nil
		}
		return &Finding{What: "the daemon has given up on the device", Evidence: since(d), Advice: "remove the cause, then let the daemon try again", Command: f.asks("recover", "--device", d.Name)}
	})
}

func deviceWaiting(f *Facts) []Finding {
	return f.devices(func(d *report.Device) *Finding {
		if d.State == report.DeviceOpen {
			return nil
		}
		return &Finding{What: "the device is not open", Evidence: since(d), Advice: "fix the cause; the daemon retries by itself. To list the HCAs, and what keeps each from working:", Command: "ipoibd devices"}
	})
}

// since describes the state of a device.
func since(d *report.Device) string {
	text := fmt.Sprintf("%s since %s, because of %s", d.State, d.Since.Local().Format(time.DateTime), d.Reason)
	return strings.TrimSuffix(text+": "+d.LastError, ": ")
}

// asks returns a command to this daemon.
func (f *Facts) asks(words ...string) string {
	text := "ipoibd"
	for _, w := range append(words, "--control", f.Socket.Path) {
		text += report.Command(" %s", w)
	}
	return text
}

func interfaceHangs(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		if why := f.Status.Stale(x); why != "" {
			return &Finding{What: "the interface does not report", Evidence: why, Advice: "send the daemon SIGQUIT: it logs what each goroutine waits for, and exits; then start it again (systemd does that by itself)", Command: report.Command("kill -QUIT %d", f.Socket.PID)}
		}
		return nil
	})
}

func interfaceFailed(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		if x.State != report.InterfaceFailed {
			return nil
		}
		return &Finding{What: "the daemon has lost the interface, and no longer serves it", Evidence: x.Because(), Advice: "restart the daemon, which creates it again", Command: f.restart()}
	})
}

func foreignProcess(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		if x.Reason != report.ReasonForeign {
			return nil
		}
		out := &Finding{What: "another process has attached to the interface and receives some of its frames", Evidence: x.Because(), Advice: "stop that process; the carrier returns by itself"}
		i := slices.IndexFunc(f.Interfaces, func(i Interface) bool { return i.Name == x.Name })
		if i >= 0 && len(f.Interfaces[i].Holders) > 0 {
			var names []string
			for _, h := range f.Interfaces[i].Holders {
				names = append(names, fmt.Sprintf("%s (pid %d)", h.Name, h.PID))
			}
			out.Evidence = "a queue of " + x.Name + " is open in " + strings.Join(names, ", ")
			if len(names) == 1 {
				out.Command = report.Command("kill %d", f.Interfaces[i].Holders[0].PID)
			}
		}
		return out
	})
}

func interfaceDown(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		if x.State != report.InterfaceDown || x.Reason != report.ReasonAdminDown {
			return nil
		}
		return &Finding{What: "the interface is down", Evidence: "it was never brought up, or it was taken down (" + x.Reason + ")", Advice: "bring it up; --up does that at the start", Command: report.Command("ip link set %s up", x.Name)}
	})
}

// unready calls each with the interfaces that `ipoibd status --check` does not accept.
func (f *Facts) unready(each func(x *report.Interface, u report.Unready) *Finding) []Finding {
	if f.Status == nil {
		return nil
	}
	list := map[string]report.Unready{}
	for _, u := range f.Status.Unready() {
		list[u.Interface] = u
	}
	return f.interfaces(func(x *report.Interface) *Finding {
		if u, is := list[x.Name]; is {
			return each(x, u)
		}
		return nil
	})
}

func interfaceNotReady(f *Facts) []Finding {
	return f.unready(func(x *report.Interface, u report.Unready) *Finding {
		if u.Up {
			return nil
		}
		return &Finding{What: "the interface carries no traffic", Evidence: fmt.Sprintf("%s: %s", x.State, cmp.Or(u.Why, x.Reason)), Advice: "fix the cause; the daemon retries by itself. To see what happened:", Command: f.asks("events")}
	})
}

func interfaceUnassigned(f *Facts) []Finding {
	return f.unready(func(x *report.Interface, u report.Unready) *Finding {
		if !u.Up {
			return nil
		}
		return &Finding{What: "the interface lacks a configured address or route", Evidence: u.Why, Advice: "correct --address or --route, or remove what conflicts with them; the daemon retries by itself", Command: report.Command("ip address show dev %s", x.Name)}
	})
}

// notice returns the text of the notices of a kind, or "".
func notice(all report.Notices, kind string) string {
	return slices.DeleteFunc(slices.Clone(all), func(n report.Notice) bool { return n.Kind != kind }).Text()
}

// noticed returns a rule about a notice of a device, with constant words besides its text. The command may
// be empty.
func noticed(kind, what, advice, command string) func(*Facts) []Finding {
	return func(f *Facts) []Finding {
		return f.devices(func(d *report.Device) *Finding {
			if text := notice(d.Notices, kind); text != "" {
				return &Finding{What: what, Evidence: text, Advice: advice, Command: command}
			}
			return nil
		})
	}
}

func noSegmentation(f *Facts) []Finding {
	return f.devices(func(d *report.Device) *Finding {
		if text := notice(d.Notices, report.NoticeNoSegmentation); text != "" {
			return &Finding{What: "bulk traffic is slower, because the kernel or the NIC does not segment UDP", Evidence: text, Advice: "see whether checksum offload can be switched on (tx-checksum-ip-generic)", Command: report.Command("ethtool -k %s", d.Underlay)}
		}
		return nil
	})
}

const usualMTU = 1500 // of an underlay; with it, the interface can have IPv6 addresses

func noIPv6(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		text := notice(x.Notices, report.NoticeNoIPv6)
		if text == "" {
			return nil
		}
		out := &Finding{What: "the interface cannot have IPv6 addresses", Evidence: fmt.Sprintf("%s (it is %d)", text, x.MTU), Advice: "if the MTU of the interface was set, raise it; else raise that of the underlay and of the network below (with --standard-mtu, to 2120 or more)"}
		for i := range f.Devices {
			d := &f.Devices[i]
			if n := f.netdev(d.Underlay); d.Name == x.Device && n != nil && n.MTU < usualMTU {
				out.Command = report.Command("ip link set %s mtu %d", n.Name, usualMTU)
			}
		}
		return out
	})
}

func eventsLost(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		text := notice(x.Notices, report.NoticeEventsLost)
		if text == "" {
			return nil
		}
		return &Finding{
			What: "traffic is slow, because interrupts of the HCA are lost", Evidence: text,
			Advice:  "check whether its interrupts are delivered (/proc/interrupts); if a reset does not help, its firmware or its driver is at fault",
			Command: report.Command("ipoibd reset device --device %s", x.Device),
		}
	})
}

func pathMTU(f *Facts) []Finding {
	return f.interfaces(func(x *report.Interface) *Finding {
		text := notice(x.Notices, report.NoticePathMTU)
		if text == "" {
			return nil
		}
		out := &Finding{What: "large packets to a peer may be lost", Evidence: text, Advice: "measure what passes, because a router's report may be forged; if large packets are lost, lower the MTU of the interface, or raise that of the path"}
		to := hca.GIDFromAddr(f.narrowest(x).To)
		if i := slices.IndexFunc(x.Peers, func(p report.Peer) bool { return p.GID == to && len(p.IPs) > 0 }); i >= 0 {
			out.Command = report.Command("ipoibd ping --sweep %s", x.Peers[i].IPs[0])
		}
		return out
	})
}

// narrowest returns the narrowest path from the GID of an interface, or the zero PathLimit if it carries all
// that the underlay does.
func (f *Facts) narrowest(x *report.Interface) (l hca.PathLimit) {
	for i := range f.Status.Devices {
		for _, p := range f.Status.Devices[i].Ports {
			if d := &f.Status.Devices[i]; d.Name == x.Device && x.QP != nil && p.Num == int(x.Port) && x.QP.GIDIndex >= 0 && x.QP.GIDIndex < len(p.GIDs) {
				return p.GIDs[x.QP.GIDIndex].Path
			}
		}
	}
	return l
}

// otherNotice is about a notice of a newer daemon.
func otherNotice(f *Facts) []Finding {
	return f.devices(func(d *report.Device) *Finding {
		for _, n := range d.Notices {
			if !slices.Contains(report.NoticeKinds, n.Kind) {
				return &Finding{What: "the daemon reports a problem that this program does not know", Evidence: n.Text, Advice: "use an ipoibd of the daemon's version"}
			}
		}
		return nil
	})
}

func otherVersion(f *Facts) []Finding {
	if f.Status == nil || f.Status.Version == f.Version {
		return nil
	}
	return []Finding{{
		What: "the daemon and this program have different versions", Evidence: fmt.Sprintf("the daemon is %s, this program %s", f.Status.Version, f.Version),
		Advice: "restart the daemon; ib0 and its connections survive that", Command: f.restart(),
	}}
}

// spareFiles is how many descriptors the daemon opens for a moment at most, such as to inspect its interfaces.
const spareFiles = 12

func filesNearlyExhausted(f *Facts) []Finding {
	if f.Status == nil || !f.Process.known() || f.Status.FDs < 0 || uint64(f.Status.FDs)+max(spareFiles, f.Process.Files/10) < f.Process.Files {
		return nil
	}
	return []Finding{{
		What: "the daemon is close to its limit of open files", Evidence: fmt.Sprintf("%d are open, RLIMIT_NOFILE is %d", f.Status.FDs, f.Process.Files),
		Advice: "raise the limit (a systemd unit: LimitNOFILE=)", Command: report.Command("prlimit --pid %d --nofile=4096", f.Process.PID),
	}}
}

// stepLimit is how long a process may take from its start until it reads the clock.
const stepLimit = 10 * time.Second

func clockStepped(f *Facts) []Finding {
	if f.ClockStep.Abs() < stepLimit {
		return nil
	}
	return []Finding{{
		What: "the clock was set while the daemon ran, so the times of earlier events are wrong; its own timers are not affected", Evidence: fmt.Sprintf("the daemon recorded its start at %s; by the kernel's boot time clock, that is off by %s", f.Status.Started.Local().Format(time.DateTime), f.ClockStep.Abs().Round(time.Second)),
		Advice: "keep that in mind when you compare times; let a time service set the clock before the daemon starts", Command: f.asks("events"),
	}}
}
