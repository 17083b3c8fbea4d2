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

func TestSubsystemOf(t *testing.T) {
	for _, c := range []struct {
		name string
		msg  []byte
		want string
		ok   bool
	}{
		{"removal", removal, "infiniband_verbs", true},
		{"no subsystem", message("add@/module/ib_core"), "", true},
		{"an @ in the path", message("add@/a@b", "SUBSYSTEM=net"), "net", true},
		{"of udev", append([]byte("libudev\x00\xfe\xed\xca\xfe"), removal...), "", false},
		{"empty", nil, "", false},
		{"cut off", removal[:len(removal)-1], "", false},
		{"no path", message("add@"), "", false},
		{"no action", message("@/devices/x"), "", false},
		{"too long", make([]byte, maxUevent+1), "", false},
	} {
		if got, ok := subsystemOf(c.msg); got != c.want || ok != c.ok {
			t.Errorf("%s: %q, %t, want %q, %t", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestUeventsThatCount(t *testing.T) {
	w := &watcher{subsystems: subsystems}
	for subsystem, want := range map[string]bool{"infiniband": true, "infiniband_verbs": true, "infiniband_mad": false, "net": false, "": false} {
		if got := w.countsUevent(message("add@/x", "SUBSYSTEM="+subsystem)); got != want {
			t.Errorf("%q: %t, want %t", subsystem, got, want)
		}
	}
}

func FuzzSubsystemOf(f *testing.F) {
	f.Add(removal)
	f.Add(message("add@/module/ib_core", "SUBSYSTEM=module", "=", "SUBSYSTEM"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		subsystem, ok := subsystemOf(msg)
		if !ok && subsystem != "" {
			t.Fatalf("a refused message returns %q", subsystem)
		}
		if ok && (msg[0] == '@' || !strings.Contains(string(msg), "@/") || len(msg) > maxUevent || strings.Contains(subsystem, "\x00")) {
			t.Fatalf("accepted the invalid event %q of subsystem %q", msg, subsystem)
		}
	})
}
