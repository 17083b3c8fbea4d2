//go:build cgo && linux && !vm

package verbs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
)

// order tells the queue pair of testdata/fake.c, in the destination of a batch's first send
// or the wr_id of its first receive, what to return and to store in errno, and which request
// to report as the bad one, counted from 1; 0 means none. A batch of fewer requests is accepted,
// unless it has one request and lone is 1.
type order struct {
	result int32
	errno  syscall.Errno
	bad    int
	lone   int
}

func (o order) id() uint64 {
	return uint64(uint32(o.result)) | uint64(o.errno)<<32 | uint64(o.bad)<<48 | uint64(o.lone)<<56
}

// in puts the order into a send.
func (o order) in(wr hca.SendWR) hca.SendWR {
	wr.UD.QPN, wr.UD.QKey = hca.QPN(o.id()), hca.QKey(o.id()>>32)
	return wr
}

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
		{"errno returned", order{result: int32(syscall.ENOMEM), bad: 1}, 0, hca.ErrQueueFull},
		{"errno returned, two taken", order{result: int32(syscall.ENOMEM), bad: 3}, 2, hca.ErrQueueFull},
		{"no bad request reported", order{result: int32(syscall.EIO)}, 0, hca.ErrIO},
		{"errno negated", order{result: -int32(syscall.ENOMEM), bad: 2}, 1, hca.ErrQueueFull},
		{"negated errno as the result, errno set by an earlier call", order{result: -int32(syscall.EINVAL), errno: syscall.EAGAIN, bad: 1}, 0, hca.ErrInvalid},
		{"errno set", order{result: -1, errno: syscall.EIO, bad: 1}, 0, hca.ErrIO},
		{"no errno", order{result: -1, bad: 2}, 1, hca.ErrQueueFull},
	} {
		sends := []hca.SendWR{tt.order.in(sendTo(1, liveAH(q.pd))), sendTo(2, liveAH(q.pd)), sendTo(3, liveAH(q.pd))}
		if n, err := q.PostSend(sends); n != tt.taken || !errors.Is(err, tt.want) {
			t.Errorf("sends, %s: %d accepted, %v, want %d, %v", tt.name, n, err, tt.taken, tt.want)
		}
		if n, err := q.PostRecv([]hca.RecvWR{{ID: tt.order.id()}, {ID: 2}, {ID: 3}}); n != tt.taken || !errors.Is(err, tt.want) {
			t.Errorf("receives, %s: %d accepted, %v, want %d, %v", tt.name, n, err, tt.taken, tt.want)
		}
		if got := q.polled(t); len(got) != tt.taken {
			t.Errorf("sends, %s: %d completions, want %d", tt.name, len(got), tt.taken)
		}
	}
}

// polled returns all completions of the CQ.
func (q *QP) polled(t *testing.T) []hca.WC {
	t.Helper()
	wcs := make([]hca.WC, 16)
	n, err := q.sendCQ.Poll(wcs)
	must(t, err)
	return wcs[:n]
}

// fakeLarge returns a large send of four segments.
func fakeLarge(t *testing.T, q *QP, id uint64) hca.SendWR {
	t.Helper()
	mr, err := q.pd.AllocMR(4000, 0)
	must(t, err)
	wr := order{}.in(sendTo(id, liveAH(q.pd), mr.SGE(0, 2500), mr.SGE(2500, 1500)))
	wr.LSO = hca.LSO{Header: hcatest.TCPHeader(), MSS: 1000}
	return wr
}

// A large send is as many requests of the device as segments, and completes once: when its
// last segment was sent, or with the failure of any. Those that the device refuses are not
// accepted. If it accepts only the first segments, the send completes nevertheless; if that is not
// possible, the queue pair has failed.
func TestLargeSendCompletesOnce(t *testing.T) {
	if os.Getenv(fakeEnv) == "" {
		withFake(t)
		return
	}
	q := fakeQP(t)
	small, large := order{}.in(sendTo(1, liveAH(q.pd))), fakeLarge(t, q, 2)
	broken := fakeLarge(t, q, 3)
	broken.SGList[1].LKey = 1 << 30 // from the third segment on
	first := order{result: int32(syscall.ENOMEM), bad: 1}.in(large)
	middle := order{result: int32(syscall.ENOMEM), bad: 3}.in(large)
	invalid := order{result: int32(syscall.EINVAL), bad: 3}.in(large)
	stuck := order{result: int32(syscall.ENOMEM), bad: 3, lone: 1}.in(large)
	for _, tt := range []struct {
		name  string
		wrs   []hca.SendWR
		taken int
		err   error
		want  []hca.WCStatus
	}{
		{"sent", []hca.SendWR{small, large, small}, 3, nil, []hca.WCStatus{0, 0, 0}},
		{"fails at the third segment", []hca.SendWR{small, broken, small}, 3, nil, []hca.WCStatus{0, hca.WCLocProtErr, hca.WCWRFlushErr}},
		{"follows a failure", []hca.SendWR{broken, large}, 2, nil, []hca.WCStatus{hca.WCLocProtErr, hca.WCWRFlushErr}},
		{"does not fit", []hca.SendWR{large, large, large}, 2, hca.ErrQueueFull, []hca.WCStatus{0, 0}},
		{"refused", []hca.SendWR{first}, 0, hca.ErrQueueFull, nil},
		{"refused from the third segment on", []hca.SendWR{middle}, 1, nil, []hca.WCStatus{0}},
		{"refused as invalid, and others follow", []hca.SendWR{invalid, small, large}, 3, nil, []hca.WCStatus{0, 0, 0}},
		{"refused, and the last segment alone too", []hca.SendWR{stuck, small}, 1, hca.ErrIO, nil},
	} {
		n, err := q.PostSend(tt.wrs)
		if n != tt.taken || !errors.Is(err, tt.err) {
			t.Errorf("%s: %d accepted, %v, want %d, %v", tt.name, n, err, tt.taken, tt.err)
		}
		var got []hca.WCStatus
		for i, wc := range q.polled(t) {
			if got = append(got, wc.Status); wc.ID != tt.wrs[i].ID {
				t.Errorf("%s: completion %d is of send %d, want %d", tt.name, i, wc.ID, tt.wrs[i].ID)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		must(t, q.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState))
		toRTS(t, q)
		if room := q.sender.book.room(); room != q.spec.SendWRs {
			t.Errorf("%s: room for %d after RESET, want %d", tt.name, room, q.spec.SendWRs)
		}
	}
	must(t, q.Close())
}

// A post, its completion and the poll allocate nothing.
func TestLargeSendDoesNotAllocate(t *testing.T) {
	if os.Getenv(fakeEnv) == "" {
		withFake(t)
		return
	}
	q := fakeQP(t)
	wrs, wcs := []hca.SendWR{fakeLarge(t, q, 1)}, make([]hca.WC, 4)
	if n := testing.AllocsPerRun(100, func() {
		if n, err := q.PostSend(wrs); n != 1 {
			t.Fatal(err)
		}
		if n, err := q.sendCQ.Poll(wcs); n != 1 {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
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
	qp, err := pd.CreateQP(hca.QPSpec{SendWRs: 10, RecvWRs: 4, SendSGEs: 2, RecvSGEs: 1, SignalAll: true}, cq, cq)
	must(t, err)
	toRTS(t, qp)
	return qp.(*QP)
}

func toRTS(t *testing.T, qp hca.QP) {
	t.Helper()
	for _, s := range []hca.QPState{hca.QPInit, hca.QPRTR, hca.QPRTS} {
		cur, err := qp.Query()
		must(t, err)
		must(t, qp.Modify(hca.QPAttr{State: s, Port: 1}, hca.AttrState|hca.UDTransition(cur.State, s).Required))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeEnv marks a test's child process, which uses the library of testdata/fake.c.
const fakeEnv = "TEST_IPOIBD_VERBS_FAKE"

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
