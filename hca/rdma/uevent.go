package rdma

import (
	"bytes"
	"slices"
	"strings"
)

// uevent is a kernel event of a device (kobject_uevent_env, lib/kobject_uevent.c).
type uevent struct {
	action    string // "add", "remove", "change", ...
	devpath   string // below /sys
	subsystem string
}

// subsystems are the classes of a device and of its verbs interface.
var subsystems = []string{"infiniband", "infiniband_verbs"}

// maxUevent bounds a message in bytes: the kernel's texts have at most 2048
// (UEVENT_BUFFER_SIZE, include/linux/kobject.h), and the line before them.
const maxUevent = 8192

// parseUevent parses ACTION@DEVPATH followed by KEY=VALUE pairs, each terminated by a zero
// byte. It returns false for anything else, such as udev's own messages.
func parseUevent(msg []byte) (ev uevent, ok bool) {
	if len(msg) == 0 || len(msg) > maxUevent || msg[len(msg)-1] != 0 {
		return ev, false
	}
	fields := bytes.Split(msg[:len(msg)-1], []byte{0})
	ev.action, ev.devpath, ok = strings.Cut(string(fields[0]), "@")
	if !ok || ev.action == "" || !strings.HasPrefix(ev.devpath, "/") {
		return uevent{}, false
	}
	for _, f := range fields[1:] {
		if key, value, _ := strings.Cut(string(f), "="); key == "SUBSYSTEM" {
			ev.subsystem = value
		}
	}
	return ev, true
}

// of reports whether an event belongs to one of some subsystems.
func (e uevent) of(subsystems []string) bool { return slices.Contains(subsystems, e.subsystem) }
