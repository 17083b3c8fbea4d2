package rdma

import (
	"strings"
	"testing"
)

// message returns an event's lines in the kernel's encoding.
func message(lines ...string) []byte { return []byte(strings.Join(lines, "\x00") + "\x00") }

// removal is the kernel's first event about the removal of a device.
var removal = message("remove@/devices/virtual/infiniband_verbs/uverbs0", "ACTION=remove",
	"DEVPATH=/devices/virtual/infiniband_verbs/uverbs0", "SUBSYSTEM=infiniband_verbs", "MAJOR=231", "MINOR=192",
	"DEVNAME=infiniband/uverbs0", "DEVMODE=0666", "SEQNUM=1203")

func TestParseUevent(t *testing.T) {
	for _, c := range []struct {
		name string
		msg  []byte
		want uevent
		ok   bool
	}{
		{"removal", removal, uevent{"remove", "/devices/virtual/infiniband_verbs/uverbs0", "infiniband_verbs"}, true},
		{"no subsystem", message("add@/module/ib_core"), uevent{"add", "/module/ib_core", ""}, true},
		{"an @ in the path", message("add@/a@b", "SUBSYSTEM=net"), uevent{"add", "/a@b", "net"}, true},
		{"of udev", append([]byte("libudev\x00\xfe\xed\xca\xfe"), removal...), uevent{}, false},
		{"empty", nil, uevent{}, false},
		{"cut off", removal[:len(removal)-1], uevent{}, false},
		{"no path", message("add@"), uevent{}, false},
		{"no action", message("@/devices/x"), uevent{}, false},
		{"too long", make([]byte, maxUevent+1), uevent{}, false},
	} {
		if ev, ok := parseUevent(c.msg); ev != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %t, want %+v, %t", c.name, ev, ok, c.want, c.ok)
		}
	}
}

func TestUeventsThatCount(t *testing.T) {
	for subsystem, want := range map[string]bool{"infiniband": true, "infiniband_verbs": true, "infiniband_mad": false, "net": false, "": false} {
		if got := (uevent{subsystem: subsystem}).of(subsystems); got != want {
			t.Errorf("%q: %t, want %t", subsystem, got, want)
		}
	}
}

func FuzzParseUevent(f *testing.F) {
	f.Add(removal)
	f.Add(message("add@/module/ib_core", "SUBSYSTEM=module", "=", "SUBSYSTEM"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		ev, ok := parseUevent(msg)
		if !ok && ev != (uevent{}) {
			t.Fatalf("a refused message returns %+v", ev)
		}
		if ok && (ev.action == "" || !strings.HasPrefix(ev.devpath, "/") || len(msg) > maxUevent || strings.Contains(ev.subsystem, "\x00")) {
			t.Fatalf("accepted the invalid event %+v", ev)
		}
	})
}
