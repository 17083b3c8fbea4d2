package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

func TestHolders(t *testing.T) {
	proc := load(`
1/comm = init
1/fd/0 -> /dev/null
20/comm = ib_send_bw
20/fd/3 -> /dev/infiniband/uverbs0
21/comm = ibv_rc_pingpong
21/fd/4 -> /dev/infiniband/uverbs01
22/comm = late
22/fd/5 -> /var/lib/container/dev/infiniband/uverbs0 (deleted)
23/fd/5 -> /dev/infiniband/uverbs0
self/fd/5 -> /dev/infiniband/uverbs0
`)
	want := []User{{20, "ib_send_bw"}, {22, "late"}, {23, "a process"}}
	if got := holders(proc, "uverbs0"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := holders(proc, ""); got != nil {
		t.Errorf("without an interface: %v", got)
	}
	if got := fmt.Sprint(want[0], User{Name: "nvme_rdma"}); got != "ib_send_bw (pid 20) the kernel's nvme_rdma" {
		t.Error(got)
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

func queuePairs() []byte {
	name := func(s string) *nl.RtAttr { return nl.NewRtAttr(attrResKern, nl.ZeroTerminated(s)) }
	pid := nl.NewRtAttr(28, binary.NativeEndian.AppendUint32(nil, 7))
	return bytes.Join([][]byte{
		nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, []byte{1, 0, 0, 0}).Serialize(),
		table(attrResQP, table(attrResQPItem, name("ib_core")), table(attrResQPItem, pid), table(attrResQPItem, name("nvme_rdma"))).Serialize(),
	}, nil)
}

func TestKernelNames(t *testing.T) {
	msg := queuePairs()
	if got, want := kernelNames(msg), []string{"ib_core", "nvme_rdma"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for n := range msg {
		if got := kernelNames(msg[:n]); len(got) > 2 {
			t.Errorf("%d bytes: %q, want 2 names at most", n, got)
		}
	}
}

func FuzzKernelNames(f *testing.F) {
	f.Add(queuePairs())
	f.Fuzz(func(t *testing.T, msg []byte) {
		total := 0
		for _, n := range kernelNames(msg) {
			total += len(n)
		}
		if total > len(msg) {
			t.Fatalf("%d bytes of names in %d", total, len(msg))
		}
	})
}
