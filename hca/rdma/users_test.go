package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/vishvananda/netlink/nl"
)

func TestUserString(t *testing.T) {
	for want, u := range map[string]User{
		"ib_send_bw (pid 20)":                                  {20, "ib_send_bw"},
		"a process (pid 20)":                                   {20, ""},
		"the kernel's nvme_rdma":                               {0, "nvme_rdma"},
		"an unknown process, perhaps of another PID namespace": {},
	} {
		if got := fmt.Sprint(u); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// table returns an attribute that contains others.
func table(typ uint16, inner ...*nl.RtAttr) *nl.RtAttr {
	a := nl.NewRtAttr(int(typ|nl.NLA_F_NESTED), nil)
	for _, i := range inner {
		a.AddChild(i)
	}
	return a
}

// listOf returns a message with resources of a part of the kernel, of a process, and of a
// process without a PID.
func listOf(kind tracked) []byte {
	name := nl.NewRtAttr(attrResKern, nl.ZeroTerminated("nvme_rdma"))
	pid := nl.NewRtAttr(attrResPID, binary.NativeEndian.AppendUint32(nil, 7))
	other := nl.NewRtAttr(65, []byte{1, 0, 0, 0}) // RDMA_NLDEV_ATTR_RES_CTXN
	return bytes.Join([][]byte{
		nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, []byte{1, 0, 0, 0}).Serialize(),
		table(kind.table, table(kind.entry, name), table(kind.entry, other, pid), table(kind.entry, other)).Serialize(),
	}, nil)
}

// A process of a PID namespace outside the caller's has no PID, and is a user like any other.
func TestParseResources(t *testing.T) {
	for _, kind := range []tracked{contexts, domains} {
		msg := listOf(kind)
		if got, want := kind.parse(msg), []User{{0, "nvme_rdma"}, {7, ""}, {}}; !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		for n := range msg {
			if got := kind.parse(msg[:n]); len(got) > 3 {
				t.Errorf("%d bytes: %+v, want 3 users at most", n, got)
			}
		}
	}
}

// The kernel reports the thread that has opened the device. The user is its process.
func TestIdentify(t *testing.T) {
	proc := fstest.MapFS{
		"21/status": {Data: []byte("Name:\tworker\nUmask:\t0022\nTgid:\t20\nNgid:\t0\nPid:\t21\n")},
		"20/status": {Data: []byte("Name:\tib_send_bw\nTgid:\t20\n")},
		"20/comm":   {Data: []byte("ib_send_bw\n")},
		"30/status": {Data: []byte("Name:\thidden\nTgid:\t\n")},
	}
	users := []User{{21, ""}, {20, ""}, {30, ""}, {40, ""}, {}, {0, "nvme_rdma"}}
	want := []User{{20, "ib_send_bw"}, {20, "ib_send_bw"}, {30, ""}, {40, ""}, {}, {0, "nvme_rdma"}}
	if identify(proc, users); !slices.Equal(users, want) {
		t.Errorf("%+v, want %+v", users, want)
	}
}

func FuzzParseResources(f *testing.F) {
	f.Add(listOf(contexts))
	f.Fuzz(func(t *testing.T, msg []byte) {
		total := 0
		for _, u := range contexts.parse(msg) {
			total += len(u.Name)
		}
		if total > len(msg) {
			t.Fatalf("%d bytes of names in %d", total, len(msg))
		}
	})
}
