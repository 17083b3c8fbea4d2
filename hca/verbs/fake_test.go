//go:build cgo && linux && !vm

package verbs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ipoibd/hca"
)

// order tells the queue pair of testdata/fake.c, in the wr_id of a batch's first
// request, what to return and to store in errno, and which request to report as the
// bad one, counted from 1; 0 means none.
type order struct {
	result int32
	errno  syscall.Errno
	bad    int
}

func (o order) id() uint64 { return uint64(uint32(o.result)) | uint64(o.errno)<<32 | uint64(o.bad)<<48 }

// libibverbs keeps the objects that events refer to, even if the user's environment
// asks it to free them.
func TestKeepsObjectsOfLostDevices(t *testing.T) {
	if os.Getenv(fakeEnv) == "" {
		withFake(t)
		return
	}
	fakeQP(t)
}

// Posting handles every way in which a provider may refuse a batch.
func TestPostRefused(t *testing.T) {
	if os.Getenv(fakeEnv) == "" {
		withFake(t)
		return
	}
	q := fakeQP(t)
	for _, tt := range []struct {
		name  string
		order order
		taken int
		want  error
	}{
		{"all taken", order{}, 3, nil},
		{"all accepted, errno set by an earlier call", order{errno: syscall.EAGAIN}, 3, nil},
		{"errno returned", order{int32(syscall.ENOMEM), 0, 1}, 0, hca.ErrQueueFull},
		{"errno returned, two taken", order{int32(syscall.ENOMEM), 0, 3}, 2, hca.ErrQueueFull},
		{"no bad request reported", order{int32(syscall.EIO), 0, 0}, 0, hca.ErrIO},
		{"errno negated", order{-int32(syscall.ENOMEM), 0, 2}, 1, hca.ErrQueueFull},
		{"negated errno as the result, errno set by an earlier call", order{-int32(syscall.EINVAL), syscall.EAGAIN, 1}, 0, hca.ErrInvalid},
		{"errno set", order{-1, syscall.EIO, 1}, 0, hca.ErrIO},
		{"no errno", order{-1, 0, 2}, 1, hca.ErrQueueFull},
	} {
		sends := []hca.SendWR{sendTo(tt.order.id(), liveAH(q.pd)), sendTo(2, liveAH(q.pd)), sendTo(3, liveAH(q.pd))}
		if n, err := q.PostSend(sends); n != tt.taken || !errors.Is(err, tt.want) {
			t.Errorf("sends, %s: %d accepted, %v, want %d, %v", tt.name, n, err, tt.taken, tt.want)
		}
		if n, err := q.PostRecv([]hca.RecvWR{{ID: tt.order.id()}, {ID: 2}, {ID: 3}}); n != tt.taken || !errors.Is(err, tt.want) {
			t.Errorf("receives, %s: %d accepted, %v, want %d, %v", tt.name, n, err, tt.taken, tt.want)
		}
	}
}

// A queue pair has one queue.
func TestQueuesAreRefused(t *testing.T) {
	if os.Getenv(fakeEnv) == "" {
		withFake(t)
		return
	}
	q := fakeQP(t)
	for _, n := range []int{-1, 2} {
		spec := q.Spec()
		spec.Queues = n
		if _, err := q.pd.CreateQP(spec, q.sendCQ, q.recvCQ); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%d queues: %v", n, err)
		}
	}
	if n := q.pd.dev.Attr().MaxQueues; n != 1 {
		t.Errorf("%d queues at most, want 1", n)
	}
}

// fakeQP opens the device of testdata/fake.c and creates a queue pair that accepts
// requests.
func fakeQP(t *testing.T) *QP {
	t.Helper()
	if err := load(); err != nil {
		t.Fatal(err)
	}
	d := &Device{}
	must(t, d.open("fake0", "uverbs0"))
	pd, err := d.AllocPD()
	must(t, err)
	cq, err := d.CreateCQ(hca.CQSpec{Entries: 8})
	must(t, err)
	qp, err := pd.CreateQP(hca.QPSpec{SendWRs: 4, RecvWRs: 4, SendSGEs: 1, RecvSGEs: 1}, cq, cq)
	must(t, err)
	for _, s := range []hca.QPState{hca.QPInit, hca.QPRTR, hca.QPRTS} {
		cur, err := qp.Query()
		must(t, err)
		must(t, qp.Modify(hca.QPAttr{State: s, Port: 1}, hca.AttrState|hca.UDTransition(cur.State, s).Required))
	}
	return qp.(*QP)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeEnv marks a test's child process, which uses the library of testdata/fake.c.
const fakeEnv = "IPOIBD_VERBS_FAKE"

// withFake runs the calling test in a child process that finds this library first.
func withFake(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	cc := exec.Command("cc", "-shared", "-fPIC", "-Wl,--version-script=testdata/fake.map",
		"-o", filepath.Join(dir, "libibverbs.so.1"), "testdata/fake.c")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	child := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), fakeEnv+"=1", "LD_LIBRARY_PATH="+dir,
		"RDMAV_ALLOW_DISASSOC_DESTROY=1", "MLX4_DEVICE_FATAL_CLEANUP=1")
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}
