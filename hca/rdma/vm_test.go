//go:build vm

package rdma

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
)

// netdev returns the netdev that TEST_IPOIBD_RDMA_NETDEV names, which has an address and no
// RDMA device. These tests run in a guest, as root, with the Soft-RoCE driver available.
func netdev(t *testing.T) string {
	t.Helper()
	name := os.Getenv("TEST_IPOIBD_RDMA_NETDEV")
	if name == "" {
		t.Fatal("TEST_IPOIBD_RDMA_NETDEV names no netdev")
	}
	return name
}

const softDevice = "rxetest"

// find returns the device that add has created.
func find() (Device, error) {
	devices, err := List()
	if err != nil {
		return Device{}, err
	}
	return Find(devices, softDevice)
}

// add creates a device, and deletes it at the end if it still exists.
func add(t *testing.T) Device {
	t.Helper()
	must(t, AddLink(softDevice, netdev(t)))
	t.Cleanup(func() {
		if _, err := find(); err == nil {
			must(t, DelLink(softDevice))
		}
	})
	return waitUsable(t)
}

// waitUsable waits until the device reports no trouble, because a new device gets its
// GIDs a moment later.
func waitUsable(t *testing.T) (d Device) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		d, err = find()
		err = errors.Join(err, d.ReadGIDs())
		if err == nil && len(d.Troubles())+len(d.Ports[0].Troubles()) == 0 {
			return d
		}
	}
	t.Fatalf("the device is not usable within %s: %+v", limit, d)
	return d
}

// hold opens the verbs interface, as libibverbs does.
func hold(t *testing.T, d Device) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/infiniband/"+d.Verbs, os.O_RDWR, 0)
	must(t, err)
	return f
}

// openContext opens a context on a verbs interface (IB_USER_VERBS_CMD_GET_CONTEXT,
// include/uapi/rdma/ib_user_verbs.h).
func openContext(t *testing.T, f *os.File) {
	t.Helper()
	var response [8]byte // async_fd, num_comp_vectors
	pin := runtime.Pinner{}
	pin.Pin(&response)
	defer pin.Unpin()
	cmd := binary.NativeEndian.AppendUint32(nil, 0)   // the command
	cmd = binary.NativeEndian.AppendUint16(cmd, 16/4) // words of the request
	cmd = binary.NativeEndian.AppendUint16(cmd, 8/4)  // words of the response
	cmd = binary.NativeEndian.AppendUint64(cmd, uint64(uintptr(unsafe.Pointer(&response))))
	_, err := f.Write(cmd)
	must(t, err)
	t.Cleanup(func() { must(t, os.NewFile(uintptr(binary.NativeEndian.Uint32(response[:])), "async").Close()) })
}

func TestVMList(t *testing.T) {
	d := add(t)
	if d.Parent != netdev(t) || d.NodeType != nodeCA || d.PCIAddr == "" {
		t.Errorf("%+v, want the netdev as its parent, and a PCI address", d)
	}
	if i := slices.IndexFunc(d.Ports[0].GIDs, func(g GID) bool { return g.GID.Addr().Is4() }); i < 0 || d.Ports[0].GIDs[i].Netdev != netdev(t) {
		t.Errorf("no IPv4 GID: %+v", d.Ports[0])
	}
	begin := time.Now()
	const rounds = 10
	for range rounds {
		_, err := List()
		must(t, err)
	}
	t.Logf("a list takes %s", time.Since(begin)/rounds)
}

func TestVMUsers(t *testing.T) {
	d := add(t)
	if users, err := Users(d); err != nil || len(users) != 0 {
		t.Errorf("users of an unused device: %v, %v", users, err)
	}
	f := hold(t, d)
	openContext(t, f)
	users, err := Users(d)
	must(t, err)
	if len(users) != 1 || users[0].PID != os.Getpid() || users[0].Name == "" {
		t.Errorf("users while this process holds the device: %v", users)
	}
	must(t, f.Close())
}

// The removal of a device in use causes a hint, and the device disappears from the list
// at once. The removal ends when the device is closed.
func TestVMRemovalCausesAHintBeforeItEnds(t *testing.T) {
	d := add(t)
	f := hold(t, d)
	changed, err := Watch(t.Context())
	must(t, err)
	for hinted(t, changed, quiet) {
	}
	begin, deleted := time.Now(), make(chan error, 1)
	go func() { deleted <- DelLink(softDevice) }()
	for listed := true; listed; _, err = find() {
		if listed = err == nil; listed && !hinted(t, changed, limit) {
			t.Fatal("the removal caused no hint")
		}
	}
	t.Logf("disappeared from the list after %s", time.Since(begin))
	select {
	case err := <-deleted:
		t.Fatalf("the removal ended while the device was open: %v", err)
	case <-time.After(quiet):
	}
	must(t, f.Close())
	select {
	case err := <-deleted:
		must(t, err)
	case <-time.After(limit):
		t.Fatal("the removal did not end although the device was closed")
	}
}

func TestVMReturnCausesAHintAndIsAnotherInstance(t *testing.T) {
	first := add(t)
	changed, err := Watch(t.Context())
	must(t, err)
	must(t, DelLink(softDevice))
	for hinted(t, changed, quiet) {
	}
	must(t, AddLink(softDevice, netdev(t)))
	if !hinted(t, changed, limit) {
		t.Error("the return of the device caused no hint")
	}
	second := waitUsable(t)
	if second.Index == first.Index || second.NodeGUID != first.NodeGUID {
		t.Errorf("index %d, was %d; GUID %s, was %s", second.Index, first.Index, second.NodeGUID, first.NodeGUID)
	}
}

// Unbinding the driver of the netdev's function removes netdev and device; both can be
// created again.
func TestVMRebind(t *testing.T) { testFunction(t, (*Function).Rebind) }

// The same, with a reset of the function in between.
func TestVMFunctionReset(t *testing.T) { testFunction(t, (*Function).Reset) }

func testFunction(t *testing.T, reset func(*Function) error) {
	d := add(t)
	f, err := OpenFunction(d.PCIAddr)
	must(t, err)
	defer f.Close()
	if got := f.Netdevs(); !slices.Equal(got, []string{d.Parent}) {
		t.Errorf("netdevs %v, want %v", got, d.Parent)
	}
	must(t, reset(f))
	if _, err := find(); err == nil {
		t.Error("the device still exists")
	}
	if got := f.Netdevs(); !slices.Equal(got, []string{d.Parent}) {
		t.Fatalf("netdevs %v, want %v", got, d.Parent)
	}
	link, err := netlink.LinkByName(d.Parent)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	must(t, AddLink(softDevice, d.Parent))
	if again := waitUsable(t); again.NodeGUID != d.NodeGUID {
		t.Errorf("the device is %+v, was %+v: another node GUID", again, d)
	}
}

// When the netdev goes down, the port goes down and loses its GIDs.
func TestVMPortFollowsTheNetdev(t *testing.T) {
	d := add(t)
	link, err := netlink.LinkByName(d.Parent)
	must(t, err)
	must(t, netlink.LinkSetDown(link))
	down, err := find()
	must(t, err)
	if got := down.Ports[0].Troubles(); !slices.Contains(got, PortDown) {
		t.Errorf("troubles of a port that is down: %v, want PortDown", got)
	}
	must(t, netlink.LinkSetUp(link))
	waitUsable(t)
}
