package iface

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
	"ipoibd/link"
	"ipoibd/link/kernel/capsule"
	"ipoibd/link/linktest"
	"ipoibd/ud/ipoib"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// testSendWRs is the depth of a test host's send queue.
const testSendWRs = 128

// tap is a TAP in memory that notes what the daemon does to it.
type tap struct {
	*linktest.Fake
	neighbours []link.Neighbour
	more       []link.Queue // further queues

	mu         sync.Mutex
	unresolved []netip.Addr  // what the host waits for
	carriers   []bool        // what SetCarrier was called with, repetitions left out
	stuck      bool          // the carrier cannot be raised
	unreadable bool          // reads fail
	failed     int           // reads
	assigned   []assigned    // the calls of Assign
	refusal    error         // of Assign
	grounded   error         // of BringUp
	raised     int           // calls of BringUp
	given      bool          // GiveUp was called
	listed     int           // calls of Groups
	unlisted   error         // of Groups
	locked     chan struct{} // closed when another process releases the kernel's lock of all interfaces; nil: it is free
}

// hold makes another process hold the kernel's lock of all interfaces, until release is called.
func (t *tap) hold() (release func()) {
	locked := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.locked = locked
	return func() { close(locked) }
}

// lock waits for the kernel's lock of all interfaces.
func (t *tap) lock() {
	t.mu.Lock()
	locked := t.locked
	t.mu.Unlock()
	if locked != nil {
		<-locked
	}
}

func (t *tap) SetOffloads(want link.Offloads) (link.Offloads, error) {
	t.lock()
	return t.Fake.SetOffloads(want)
}

// assigned is a call of Assign, and the state that it found.
type assigned struct {
	link.Assignment
	up bool
}

func (t *tap) Assign(a link.Assignment) error {
	s, err := t.State()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assigned = append(t.assigned, assigned{a, s.Up})
	return errors.Join(err, t.refusal)
}

func (t *tap) BringUp() error {
	t.mu.Lock()
	err := t.grounded
	t.raised++
	t.mu.Unlock()
	if err == nil {
		t.SetUp(true)
	}
	return err
}

var errStuck = errors.New("carrier is stuck")

func (t *tap) State() (link.State, error) {
	t.lock()
	return t.Fake.State()
}

func (t *tap) SetMTU(mtu int) error {
	t.lock()
	t.Fake.SetMTU(mtu)
	return nil
}

func (t *tap) SetCarrier(on bool) error {
	t.lock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stuck && on {
		return errStuck
	}
	if n := len(t.carriers); n == 0 || t.carriers[n-1] != on {
		t.carriers = append(t.carriers, on)
	}
	return t.Fake.SetCarrier(on)
}

func (t *tap) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	t.mu.Lock()
	unreadable := t.unreadable
	if unreadable {
		t.failed++
	}
	t.mu.Unlock()
	if unreadable {
		return 0, errStuck
	}
	return t.Fake.ReadBatch(bufs, sizes)
}

// block makes every read fail, or succeed again.
func (t *tap) block(unreadable bool) {
	t.mu.Lock()
	t.unreadable = unreadable
	t.mu.Unlock()
	t.Wake()
}

// failedReads returns how many reads have failed.
func (t *tap) failedReads() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// forget returns the notes and clears them.
func (t *tap) forget() []bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.carriers
	t.carriers = nil
	return was
}

func (t *tap) jam(stuck bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stuck = stuck
}

func (t *tap) Inspect() (link.Findings, error) {
	t.lock()
	return t.Fake.Inspect()
}

// Queues implements [link.Device].
func (t *tap) Queues() []link.Queue { return append([]link.Queue{t}, t.more...) }

func (*tap) Elsewhere() bool                  { return false }
func (*tap) SetPrograms(link.Programs) error  { return nil }
func (*tap) ObserveWaits(int, func(), func()) {}
func (*tap) AttachEgress(int) (int, error)    { return 1, nil }
func (*tap) Export(*capsule.Writer)           {}
func (t *tap) GiveUp()                        { t.given = true }
func (*tap) Own()                             {}

func (t *tap) Remove() error {
	t.Delete()
	return t.Close()
}

func (t *tap) Neighbours() ([]link.Neighbour, error) {
	t.lock()
	return t.neighbours, nil
}

func (t *tap) Unresolved() ([]netip.Addr, error) {
	t.lock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.unresolved), nil
}

func (t *tap) Groups() ([]netip.Addr, error) {
	t.lock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed++
	if t.unlisted != nil {
		return nil, t.unlisted
	}
	return t.Fake.Groups()
}

// refuseGroups makes readings of the host's groups fail with an error, or succeed again.
func (t *tap) refuseGroups(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unlisted = err
}

// readings returns how often the host's groups have been read.
func (t *tap) readings() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listed
}

func (t *tap) resolved(ip netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unresolved = slices.DeleteFunc(t.unresolved, func(u netip.Addr) bool { return u == ip })
}

// host is a machine: a netdev on the fabric, a device, an interface, and an IP
// stack that speaks ARP and takes IPv4 packets.
type testHost struct {
	t     *testing.T
	name  string
	under netip.Addr
	ip    netip.Addr
	tap   *tap
	iface *Iface
	dev   *device.Device
	share bool  // the device is another testHost's
	end   error // the expected result of Run; nil: that of stop

	fabric *memfabric.Fabric
	mu     sync.Mutex
	ports  []*memfabric.Port // of the netdev, one for each lane; each represents the netdev
	absent bool
	dark   bool   // the netdev is down
	index  uint32 // of the netdev

	plugged chan struct{}   // has a value when absent changed
	faults  *faults.Device  // of the device that was opened last
	forever chan struct{}   // closed: verbs that hang forever return
	verbs   *verbs          // beneath the faults; nil: the bare device
	refuses bool            // no queue pair can be created
	mute    atomic.Bool     // its multicast is lost
	plain   bool            // its device has no optional reports
	prompt  bool            // its device says that verbs never block, as the software HCA does, so no fault may block them
	lanes   int             // of its device; 0 means 1
	port    *memsubnet.Port // of an InfiniBand subnet; nil: the device is on the fabric

	inbox chan []byte // IPv4 packets for the host
	arp   map[netip.Addr]ipoib.MAC
	stop  func()

	stopInterface func()
}

// pkeyOther is the second P_Key of every port.
const pkeyOther hca.PKey = 0x8001

// underlayMTU is the MTU of a netdev that was plugged in just now.
const underlayMTU = 1500

// newFabric returns a fabric that is closed at the end of the test, after its hosts have been
// stopped.
func newFabric(t *testing.T, seed uint64) *memfabric.Fabric {
	t.Helper()
	fabric := memfabric.New(seed)
	t.Cleanup(func() {
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	})
	return fabric
}

// bareHost returns host n of a fabric, underlay 192.0.2.n, ib0 10.0.0.n, without a device and
// an interface.
func bareHost(t *testing.T, fabric *memfabric.Fabric, n byte) *testHost {
	return &testHost{
		t: t, name: string('a' + rune(n) - 1), fabric: fabric,
		under: netip.AddrFrom4([4]byte{192, 0, 2, n}), ip: netip.AddrFrom4([4]byte{10, 0, 0, n}),
		tap: &tap{Fake: linktest.NewFake("ib0")}, inbox: make(chan []byte, 64), arp: map[netip.Addr]ipoib.MAC{},
		plugged: make(chan struct{}, 1), index: 1, forever: make(chan struct{}),
	}
}

// newHost starts host n of a fabric.
func newHost(t *testing.T, fabric *memfabric.Fabric, n byte) *testHost {
	t.Helper()
	h := bareHost(t, fabric, n)
	h.run()
	return h
}

// run gives the host a device and an interface, and starts them.
func (h *testHost) run() {
	h.t.Helper()
	h.runIn(hca.PKeyDefault)
}

// runIn is run, with the interface in a partition.
func (h *testHost) runIn(pkey hca.PKey) {
	h.t.Helper()
	h.dev = device.New(h.device())
	cfg := testConfig()
	cfg.PKey = pkey
	h.iface = newIface(h.t, h.tap, h.dev, cfg)
	h.start()
}

func testConfig() config.Interface {
	cfg := config.NewInterface()
	cfg.SendWRs, cfg.RecvWRs = testSendWRs, 128
	cfg.EBPF = false // none is loaded
	return cfg
}

// onTAP returns a new interface on a TAP, with a lane for each queue.
func onTAP(cfg config.Interface, tap TAP, env Env) (*Iface, error) {
	f, err := construct(cfg, tap, State{}, env)
	if err == nil {
		f.host.assignment.bringUp(cfg.Up)
	}
	return f, err
}

func newIface(t *testing.T, tap *tap, dev *device.Device, cfg config.Interface) *Iface {
	t.Helper()
	f, err := onTAP(cfg, tap, Env{Device: dev, Journal: journal.New(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (h *testHost) open(context.Context) (hca.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.absent {
		return nil, errors.New("netdev is not there")
	}
	if err := h.free(); err != nil {
		return nil, err
	}
	dev, err := h.openHCA()
	if err != nil {
		return nil, err
	}
	h.faults = faults.Wrap(h.verbs.wrap(dev), faults.Options{Forever: h.forever})
	if h.refuses {
		err = h.faults.Inject(faults.Fault{Kind: faults.CreateQPFails, Count: math.MaxInt})
	}
	if h.prompt {
		return promptDevice{h.faults}, err
	}
	return h.faults, err
}

// openHCA opens the HCA below the faults: on an InfiniBand subnet, or on the fabric. h.mu is held.
func (h *testHost) openHCA() (hca.Device, error) {
	if h.port != nil {
		dev, err := h.port.Open(nil)
		if err == nil {
			h.ports = []*memfabric.Port{dev.Netdev()}
		}
		return dev, err
	}
	h.ports = h.fabric.AttachLanes(max(1, h.lanes), h.name, underlayMTU, h.under)
	h.ports[0].SetUp(!h.dark)
	cfg := soft.Config{Name: "soft", Transport: muted{h.ports[0], &h.mute}, GUID: h.guid(), PKeys: []hca.PKey{hca.PKeyDefault, pkeyOther}}
	for _, p := range h.ports[1:] {
		cfg.More = append(cfg.More, muted{p, &h.mute})
	}
	return h.openSoft(cfg)
}

// promptDevice is a device whose verbs never block.
type promptDevice struct{ *faults.Device }

func (d promptDevice) Attr() hca.DeviceAttr {
	a := d.Device.Attr()
	a.NeverBlocks = true
	return a
}

// heal ends the faults of the current device.
func (h *testHost) heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.Clear()
}

// refuse makes devices that are opened from now on refuse to create queue pairs, or ends that, also
// for the current device.
func (h *testHost) refuse(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuses = on
	if !on {
		h.faults.Clear()
	}
}

// release makes hanging verbs of the current device return.
func (h *testHost) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.Release()
}

// inject plans faults of the current device.
func (h *testHost) inject(fs ...faults.Fault) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range fs {
		if err := h.faults.Inject(f); err != nil {
			h.t.Fatal(err)
		}
	}
}

// sibling starts another interface on the device of h, ib0 being 10.0.0.n.
func (h *testHost) sibling(n byte, pkey hca.PKey) *testHost {
	h.t.Helper()
	s := bareHost(h.t, h.fabric, n)
	s.under, s.dev, s.share, s.port = h.under, h.dev, true, h.port
	s.tap.Fake = linktest.NewFake("ib1").WithMAC([6]byte{2, 0, 0, 0, 1, n})
	cfg := testConfig()
	cfg.Name, cfg.PKey = "ib1", pkey
	s.iface = newIface(h.t, s.tap, s.dev, cfg)
	s.start()
	return s
}

// start runs the device, the interface and the host's stack until stop, or until the end of
// the test. Hosts that share a device stop before it.
func (h *testHost) start() {
	ctx, stop := context.WithCancel(context.Background())
	var dev sync.WaitGroup
	if !h.share {
		dev.Go(func() { h.dev.Run(ctx) })
	}
	h.startInterface()
	h.stop = sync.OnceFunc(func() {
		h.stopInterface()
		stop()
		dev.Wait()
		if err := h.iface.Close(); err != nil {
			h.t.Errorf("%s: %v", h.name, err)
		}
	})
	h.t.Cleanup(h.stop)
}

// startInterface runs the interface and the host's stack until stopInterface.
func (h *testHost) startInterface() {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.iface.Run(ctx); !errors.Is(err, h.end) {
			h.t.Errorf("%s ended with %v, want %v", h.name, err, h.end)
		}
	})
	wg.Go(func() { h.stack(ctx) })
	h.stopInterface = func() { stop(); wg.Wait() }
	synctest.Wait()
}

// unplug takes the netdev away; plug gives it back.
func (h *testHost) unplug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.absent = true
	h.ports[0].Remove()
	h.replugged()
}

// underlay returns the netdev that was plugged in last.
func (h *testHost) underlay() *memfabric.Port {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ports[0]
}

func (h *testHost) plug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.absent = false
	h.index++
	h.replugged()
}

// up adds an address and runs `ip link set ib0 up`.
func (h *testHost) up() {
	h.tap.AddAddr(netip.PrefixFrom(h.ip, 24))
	h.tap.SetUp(true)
	synctest.Wait()
}

func (h *testHost) mac() ipoib.MAC {
	st, err := h.tap.Fake.State()
	if err != nil {
		h.t.Fatal(err)
	}
	return st.MAC
}

// onRun calls do on Run's goroutine, which owns the fields of the interface, and waits for
// it. After the end of Run it does nothing.
func (h *testHost) onRun(do func(f *Iface)) {
	done := make(chan struct{})
	select {
	case h.iface.queries <- func() { do(h.iface); close(done) }:
		<-done
	case <-h.iface.done:
	}
}

func (h *testHost) status() report.Interface {
	h.onRun(func(f *Iface) { f.show(time.Now()) })
	return h.iface.Status()
}

// stack answers ARP and keeps IPv4 packets, except queries of the daemon for groups.
func (h *testHost) stack(ctx context.Context) { h.stackOn(ctx, h.tap.Fake) }

// stackOn is stack for one queue of the TAP.
func (h *testHost) stackOn(ctx context.Context, queue *linktest.Fake) {
	for {
		frame, err := queue.Recv(ctx)
		if err != nil {
			return
		}
		switch binary.BigEndian.Uint16(frame[12:]) {
		case uint16(ipoib.EtherTypeARP):
			h.onARP(frame[14:])
		case uint16(ipoib.EtherTypeIPv4):
			if !ipoib.IsMembershipQuery(ipoib.EtherTypeIPv4, frame[14:]) { // no one is a member
				h.inbox <- frame
			}
		}
	}
}

func (h *testHost) onARP(body []byte) {
	a, err := ipoib.ParseEtherARP(body)
	if err != nil {
		h.t.Errorf("%s got a bad ARP: %v", h.name, err)
		return
	}
	h.mu.Lock()
	h.arp[a.SPA] = a.SHA
	h.mu.Unlock()
	h.tap.resolved(a.SPA)
	if a.Op == 1 && a.TPA == h.ip && a.SPA != h.ip {
		h.send(a.SHA, ipoib.EtherTypeARP, ipoib.EtherARP{Op: 2, SHA: h.mac(), SPA: h.ip, THA: a.SHA, TPA: a.SPA}.Append(nil))
	}
}

func (h *testHost) send(dst ipoib.MAC, t ipoib.EtherType, body []byte) {
	h.tap.Send(h.frame(dst, t, body))
}

func (h *testHost) frame(dst ipoib.MAC, t ipoib.EtherType, body []byte) []byte {
	src := h.mac()
	frame := append(append(dst[:len(dst):len(dst)], src[:]...), byte(t>>8), byte(t))
	return append(frame, body...)
}

// resolve asks for an address as a host's stack would, once.
func (h *testHost) resolve(ip netip.Addr) {
	h.send(ipoib.Broadcast, ipoib.EtherTypeARP, ipoib.EtherARP{Op: 1, SHA: h.mac(), SPA: h.ip, TPA: ip}.Append(nil))
	synctest.Wait()
}

func (h *testHost) neighbour(ip netip.Addr) (ipoib.MAC, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	mac, ok := h.arp[ip]
	return mac, ok
}

// sendIP sends an IPv4 packet of size bytes to a MAC.
func (h *testHost) sendIP(mac ipoib.MAC, to netip.Addr, size int, mark byte) {
	h.send(mac, ipoib.EtherTypeIPv4, h.packet(to, size, mark))
}

func (h *testHost) packet(to netip.Addr, size int, mark byte) []byte {
	p := make([]byte, size)
	p[0], p[8], p[9] = 0x45, 64, 253
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	src, dst := h.ip.As4(), to.As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	for i := 20; i < size; i++ {
		p[i] = mark
	}
	return p
}

// takeIP returns the next IPv4 frame, or nil.
func (h *testHost) takeIP() []byte {
	synctest.Wait()
	select {
	case f := <-h.inbox:
		return f
	default:
		return nil
	}
}
