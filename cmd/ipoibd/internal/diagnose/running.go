package diagnose

import (
	"fmt"
	"strings"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/qprecovery"
)

// deviceRules are about what keeps the devices and interfaces of a daemon from working.
var deviceRules = []rule{
	{"device_suspended", Error, devices, stateIs(qprecovery.DeviceSuspended), nil, texts{
		"the device was closed by 'ipoibd suspend', or before the system slept", since,
		"open it again", "ipoibd resume --control {control}",
	}},
	{"device_given_up", Error, devices, stateIs(qprecovery.DeviceGivenUp), nil, texts{
		"the daemon has given up on the device", since,
		"fix the cause, then make the daemon retry", "ipoibd recover --device {device} --control {control}",
	}},
	{"device_waiting", Error, devices, deviceWaiting, noDevice, texts{
		"the device is not open", since,
		"fix the cause; the daemon retries by itself. To list the HCAs, and what keeps each from working:",
		"ipoibd devices",
	}},
	{"interface_hangs", Error, served, interfaceHangs, nil, texts{
		"the interface does not report", "{silence}",
		quit, "kill -QUIT {pid}",
	}},
	{"interface_failed", Error, served, interfaceFailed, nil, texts{
		"the daemon has lost the interface, and no longer serves it", "{why}",
		"restart the daemon, which creates it again", restart,
	}},
	{"foreign_process", Error, served, foreignProcess, nil, texts{
		"another process has attached to the interface and receives some of its frames",
		"a queue of {subject} is open in {holders} | {why}",
		"stop that process; the carrier returns by itself", "kill {holder}",
	}},
	{"interface_down", Error, served, interfaceDown, nil, texts{
		"the interface is down", "it was never brought up, or it was taken down ({reason})",
		"bring it up; --up does that at the start", "ip link set {subject} up",
	}},
	{"interface_not_ready", Error, served, unready(false), noState, texts{
		"the interface carries no traffic", "{state}: {unready} | {state}: {reason}",
		"fix the cause; the daemon retries by itself. To see what happened:", "ipoibd events --control {control}",
	}},
	{"interface_unassigned", Error, served, unready(true), noInterface, texts{
		"the interface lacks a configured address or route", "{unready}",
		"correct --address or --route, or remove what conflicts with them; the daemon retries by itself",
		"ip address show dev {subject}",
	}},
}

// since is the evidence about a device that is not open.
const since = "{state} since {since}, because of {reason}: {error} | {state} since {since}, because of {reason}"

func stateIs(state qprecovery.DeviceState) func(*subject) bool {
	return func(s *subject) bool { return s.open.State == state.String() }
}

func deviceWaiting(s *subject) bool { return s.open.State != report.DeviceOpen }

func interfaceHangs(s *subject) bool {
	why := Stale(s.Status, s.ib)
	return s.sayIf(why != "", "silence", why)
}

func interfaceFailed(s *subject) bool { return s.ib.State == report.InterfaceFailed }

func foreignProcess(s *subject) bool {
	x := first(s.Interfaces, func(x *Interface) bool { return x.Name == s.name })
	if x != nil && len(x.Holders) > 0 {
		var names []string
		for _, h := range x.Holders {
			names = append(names, fmt.Sprintf("%s (pid %d)", h.Name, h.PID))
		}
		s.say("holders", strings.Join(names, ", "))
		s.sayIf(len(names) == 1, "holder", x.Holders[0].PID)
	}
	return s.ib.Reason == report.ReasonForeign
}

func interfaceDown(s *subject) bool {
	return s.ib.State == report.InterfaceDown && s.ib.Reason == report.ReasonAdminDown
}

// unready returns whether 'ipoibd status --check' does not accept an interface, which is up or not.
func unready(up bool) func(*subject) bool {
	return func(s *subject) bool {
		u, is := notReady(s.Status, s.ib)
		s.sayIf(u.Why != "", "unready", u.Why)
		return is && u.Up == up
	}
}
