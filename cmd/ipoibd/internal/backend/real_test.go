package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/rdma"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

// fakeKernel has the RDMA devices that a test gives it. An opened device is a software HCA.
type fakeKernel struct {
	t      *testing.T
	fabric *memfabric.Fabric
	hints  chan struct{}

	function fakeFunction
	freed    chan struct{} // a reset blocks until it is closed

	mu      sync.Mutex // guards what follows
	devices []rdma.Device
	users   []rdma.User
	unseen  error // that usersOf returns
	err     error // that list returns
	opened  []string
	open    int      // contexts
	resets  []string // names of devices, or what was done to a PCI function
	deleted []rdma.Device
	added   []string      // "name netdev"
	addErr  error         // that addLink returns
	layer   hca.LinkLayer // of the ports
	during  func()        // called while a device is opened
	log     strings.Builder
	warned  string // the log at the last reset
	lists   int
	broken  bool // no device opens before the first reset
	below   bool // the devices are Soft-RoCE devices on the netdev of the function, whose reset removes them

	paused func() (uint64, error) // reads the pause frames of the netdev; nil: it does not count them
}

// Write stores the log.
func (k *fakeKernel) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.Write(p)
}

// maxLists is more than any test reads the list.
const maxLists = 10000

var rxeGUID = hca.GUID{2, 0, 0, 0xff, 0xfe, 0, 0, 1}

// rxe returns a Soft-RoCE device.
func rxe(name string, index uint32, guid hca.GUID) rdma.Device {
	return rdma.Device{
		Name: name, Index: index, NodeGUID: guid, SysImageGUID: guid, Parent: "eth0", PCIAddr: "0000:00:02.0", Verbs: "uverbs0",
		Ports: []rdma.Port{{Num: 1, State: hca.PortActive, LinkLayer: hca.LinkLayerEthernet, GUID: guid}},
	}
}

func newFakeKernel(t *testing.T, devices ...rdma.Device) *fakeKernel {
	return &fakeKernel{
		t: t, fabric: memfabric.New(1), hints: make(chan struct{}, 1), freed: make(chan struct{}),
		devices: devices, layer: hca.LinkLayerEthernet,
		function: fakeFunction{before: []string{"eth0"}, after: []string{"eth0"}},
	}
}

func (k *fakeKernel) kernel() kernel {
	k.function.resets = func(what string) {
		k.noteReset(what)
		if k.below {
			k.set(nil)
		}
	}
	return kernel{
		list:      k.list,
		watch:     func(context.Context) (<-chan struct{}, error) { return k.hints, nil },
		processes: k.processesOf,
		users:     k.usersOf,
		addLink:   k.addLink,
		delLink:   k.delLink,
		function: func(addr string) (function, error) {
			if addr == "" {
				return nil, hca.ErrInvalid
			}
			return &k.function, nil
		},
		save: func(netdev string) (func() error, error) {
			return func() error { return nil }, nil
		},
		pauses: func(rdma.Device) (func() (uint64, error), func() error) {
			if k.paused == nil {
				return nil, nil
			}
			return k.paused, func() error { k.paused = nil; return nil }
		},
	}
}

func (k *fakeKernel) list() ([]rdma.Device, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lists++; k.lists > maxLists {
		panic("the list is read without a pause")
	}
	return k.devices, k.err
}

func (k *fakeKernel) usersOf(rdma.Device) ([]rdma.User, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	users := slices.Clone(k.users)
	if k.open > 0 && k.unseen == nil {
		users = append(users, rdma.User{PID: os.Getpid(), Name: "daemon"})
	}
	return users, k.unseen
}

func (k *fakeKernel) processesOf(d rdma.Device) ([]rdma.User, error) {
	users, err := k.usersOf(d)
	return slices.DeleteFunc(users, func(u rdma.User) bool { return u.PID == 0 && u.Name != "" }), err
}

func (k *fakeKernel) logged() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.String()
}

// set replaces the devices, and the error of the list.
func (k *fakeKernel) set(err error, devices ...rdma.Device) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.devices, k.err = devices, err
}

// become replaces the devices and sends a notification.
func (k *fakeKernel) become(devices ...rdma.Device) {
	k.set(nil, devices...)
	k.hints <- struct{}{}
}

func (k *fakeKernel) contexts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open
}

func (k *fakeKernel) did() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.resets)
}

func (k *fakeKernel) noteReset(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resets = append(k.resets, what)
	k.warned = k.log.String()
}

// delLink returns when the device is released, like the kernel.
func (k *fakeKernel) delLink(name string) error {
	k.noteReset(name)
	<-k.freed
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.IndexFunc(k.devices, func(d rdma.Device) bool { return d.Name == name }); i >= 0 {
		k.deleted = append(k.deleted, k.devices[i])
		k.devices = slices.Delete(slices.Clone(k.devices), i, i+1)
	}
	return nil
}

// addLink adds a device again that was deleted, or by another process.
func (k *fakeKernel) addLink(name, netdev string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.addErr != nil {
		return k.addErr
	}
	d := rxe(name, 9, rxeGUID)
	if i := slices.IndexFunc(k.deleted, func(d rdma.Device) bool { return d.Name == name }); i >= 0 {
		d = k.deleted[i]
	}
	k.devices, k.added = append(slices.Clone(k.devices), d), append(k.added, name+" "+netdev)
	return nil
}

func (k *fakeKernel) openHCA(name string) (hca.Device, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened = append(k.opened, name)
	if k.broken && len(k.resets) == 0 {
		return nil, &hca.VerbError{Verb: "open_device", On: name, Err: hca.ErrIO}
	}
	dev, err := soft.Open(soft.Config{
		Name: name, GUID: hca.GUID{7: 9}, // a driver may not know the GUID
		Transport: k.fabric.Attach(fmt.Sprintf("eth%d", len(k.opened)), 1500, netip.MustParseAddr("10.0.0.1")),
	})
	if err != nil {
		return nil, err
	}
	k.open++
	if k.during != nil {
		k.during()
	}
	return &fakeHCA{Device: dev, k: k}, nil
}

// fakeHCA counts as a context until it is closed.
type fakeHCA struct {
	hca.Device
	k    *fakeKernel
	once sync.Once
}

func (d *fakeHCA) Close() error {
	err := d.Device.Close()
	if err == nil {
		d.once.Do(func() {
			d.k.mu.Lock()
			defer d.k.mu.Unlock()
			d.k.open--
		})
	}
	return err
}

func (d *fakeHCA) QueryPort(num uint8) (hca.PortAttr, error) {
	a, err := d.Device.QueryPort(num)
	a.LinkLayer = d.k.layer
	return a, err
}

// realConfig returns the configuration of the device rxe0.
func realConfig() config.Device {
	cfg := config.NewDevice()
	cfg.Name, cfg.HCA, cfg.Grace, cfg.Coordinator = "rxe0", "rxe0", time.Second, ""
	return cfg
}

// real is a device of the fake kernel in its slot.
type real struct {
	*device.Device
	slot     *Slot
	portGUID hca.GUID
}

// newReal makes a device of the fake kernel. Interfaces use the given ports.
func (k *fakeKernel) newReal(cfg config.Device, ports ...uint8) (*real, error) {
	log := slog.New(slog.NewTextHandler(k, nil))
	h, err := newRealHCA(k.t.Context(), cfg, k.openHCA, k.kernel(), log)
	if err != nil {
		return nil, err
	}
	s := NewSlot(h, true, log)
	guid, err := s.Probe(ports...)
	sharing := s.Sharing()
	return &real{slot: s, portGUID: guid, Device: device.New(device.Config{
		Name: cfg.Name, Open: s.Open, List: s, Reset: s.Reset, Complete: s.Complete,
		Coordinator: sharing.Dir, Means: sharing.Means, Function: sharing.Function, Holders: sharing.Holders,
		Grace: cfg.Grace, GiveUpAfter: cfg.GiveUpAfter, AllowForeign: cfg.AllowOtherDevice, Log: log,
	})}, err
}

// bubble runs a test in a synctest bubble with an open device, and checks that nothing is
// open at the end.
func bubble(t *testing.T, cfg config.Device, test func(k *fakeKernel, d *real)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		d, err := k.newReal(cfg, 1)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { d.slot.Run(ctx, d.Run) })
		await(t, d, isOpen)
		test(k, d)
		cancel()
		run.Wait()
		if n := k.contexts(); n != 0 {
			t.Errorf("%d contexts are open at the end", n)
		}
	})
}

func isOpen(v device.View) bool { return v.Session != nil }

func isGone(v device.View) bool { return v.Session == nil }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for a view and returns it.
func await(t *testing.T, d *real, ok func(device.View) bool) device.View {
	t.Helper()
	views, unsubscribe := d.Subscribe()
	defer unsubscribe()
	late := time.After(30 * time.Second)
	for {
		select {
		case <-views:
			if v := d.View(); ok(v) {
				return v
			}
		case <-late:
			t.Fatalf("not within 30 s: %+v, %v", d.View(), d.Status().State)
		}
	}
}

// A device that leaves the list is released within 2 s, because the kernel waits for that.
// When it returns it is opened again, whatever its name is; another device is not.
func TestR24RealDeviceIsReleasedAndOpenedAgain(t *testing.T) {
	bubble(t, realConfig(), func(k *fakeKernel, d *real) {
		for i, c := range []struct {
			name string
			guid hca.GUID
			took bool
		}{
			{"rxe0", rxeGUID, true},
			{"rxe0", hca.GUID{7: 1}, false},
			{"rxe7", rxeGUID, true},
			{"rxe0", rxeGUID, true},
		} {
			last := d.View().Session
			k.become()
			await(t, d, isGone)
			time.Sleep(2 * time.Second)
			if n := k.contexts(); n != 0 {
				t.Fatalf("%d: %d contexts are still open", i, n)
			}
			back := rxe(c.name, uint32(i+1), c.guid)
			back.PCIAddr = fmt.Sprintf("0000:00:1%d.0", i) // the netdev may be on another function
			k.become(back)
			time.Sleep(time.Second)
			if v := d.View(); (v.Session != nil) != c.took {
				t.Fatalf("%d: %s with GUID %s: taken %t", i, c.name, c.guid, v.Session != nil)
			}
			if !c.took {
				must(t, d.Recover(context.Background())) // it is recognized as another device
				time.Sleep(time.Second)
				continue
			}
			if a := d.View().Session.Attr(); d.View().Session == last || a.Name != c.name || a.NodeGUID != rxeGUID {
				t.Errorf("%d: %+v", i, a)
			}
		}
	})
}

// If another device is allowed, it becomes the known one.
func TestR22AllowedDeviceIsKnown(t *testing.T) {
	cfg, other := realConfig(), hca.GUID{7: 1}
	cfg.AllowOtherDevice = true
	bubble(t, cfg, func(k *fakeKernel, d *real) {
		for i, name := range []string{"rxe0", "rxe7"} {
			k.become()
			await(t, d, isGone)
			k.become(rxe(name, uint32(i+1), other))
			await(t, d, isOpen)
			if a := d.View().Session.Attr(); a.Name != name || a.NodeGUID != other {
				t.Errorf("%s: %+v", name, a)
			}
		}
	})
}

// Even if a caller asks for it, a device that has only the name of the known one is not
// reset.
func TestR22OnlyTheNameIsTheSame(t *testing.T) {
	k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
	cfg := realConfig()
	cfg.Reset = config.ResetLink
	h, err := newRealHCA(k.t.Context(), cfg, k.openHCA, k.kernel(), slog.New(slog.DiscardHandler))
	must(t, err)
	id, err := h.Find()
	must(t, err)
	dev, err := h.Open(id)
	must(t, err)
	must(t, dev.Close())
	k.devices = []rdma.Device{rxe("rxe0", 1, hca.GUID{7: 1})}
	close(k.freed)
	if err := h.Reset(t.Context()); !errors.Is(err, hca.ErrNoDevice) || k.did() != 0 {
		t.Errorf("reset: %v, %d resets", err, k.did())
	}
}

// Hardware is the same device only in the same PCI function.
func TestR22HardwareIsWhereItWas(t *testing.T) {
	here := rxe("mlx5_0", 0, rxeGUID)
	here.Parent = ""
	there := here
	there.PCIAddr = "0000:00:03.0"
	if identityOf(here).Same(identityOf(there)) {
		t.Error("two cards with the same GUIDs count as one")
	}
}

// When notifications end, the list is polled.
func TestR24RealDeviceWithoutHints(t *testing.T) {
	bubble(t, realConfig(), func(k *fakeKernel, d *real) {
		close(k.hints)
		time.Sleep(time.Minute)
		if d.View().Session == nil {
			t.Error("the device was released")
		}
		k.set(nil)
		time.Sleep(2 * time.Second)
		if n := k.contexts(); n != 0 {
			t.Errorf("%d contexts are still open", n)
		}
	})
}

// If the list cannot be read, the device stays open.
func TestRealDeviceStaysWhenTheListFails(t *testing.T) {
	bubble(t, realConfig(), func(k *fakeKernel, d *real) {
		k.set(errors.New("out of memory"), rxe("rxe0", 0, rxeGUID))
		k.hints <- struct{}{}
		time.Sleep(time.Second)
		if d.View().Session == nil {
			t.Error("the device was released")
		}
		k.become(rxe("rxe0", 0, rxeGUID))
	})
}

// A removal is noticed even if the list could not be read at its notification.
func TestRealRemovalIsFoundAfterAListThatFailed(t *testing.T) {
	bubble(t, realConfig(), func(k *fakeKernel, d *real) {
		k.set(errors.New("out of memory"))
		k.hints <- struct{}{}
		time.Sleep(500 * time.Millisecond)
		k.set(nil)
		time.Sleep(2 * time.Second)
		if n := k.contexts(); n != 0 {
			t.Errorf("%d contexts are still open", n)
		}
	})
}

// If a device goes and returns between two lists of Watch, a List in between may have been
// empty. Watch therefore sends the list again.
func TestR24ListIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		b, err := newRealHCA(t.Context(), realConfig(), k.openHCA, k.kernel(), log)
		must(t, err)
		s := NewSlot(b, false, log)
		lists := s.Watch(t.Context())
		<-lists
		k.set(nil)
		if ids := s.List(t.Context()); len(ids) != 0 {
			t.Errorf("the list is %v without a device", ids)
		}
		k.become(rxe("rxe0", 0, rxeGUID))
		select {
		case ids := <-lists:
			if len(ids) != 1 {
				t.Errorf("list %v", ids)
			}
		case <-time.After(time.Minute):
			t.Error("no list was sent")
		}
	})
}

// A fault unplugs the device, then plugs in another one, then the device itself.
func TestRealDeviceUnplugByFault(t *testing.T) {
	bubble(t, realConfig(), func(_ *fakeKernel, d *real) {
		must(t, d.slot.Faults.Inject(faults.Fault{Kind: faults.Unplug}))
		await(t, d, isGone)
		must(t, d.slot.Faults.Plug(PluggedOther))
		time.Sleep(time.Second)
		if d.View().Session != nil {
			t.Error("another device was opened")
		}
		must(t, d.slot.Faults.Plug(PluggedIn))
		await(t, d, isOpen)
	})
}

// Planned faults outlive a reset; the effects of faults that have fired do not.
func TestFaultsOutliveReset(t *testing.T) {
	bubble(t, realConfig(), func(_ *fakeKernel, d *real) {
		want := []faults.Fault{{Kind: faults.CreateQPFails, After: 2, Count: 3}, {Kind: faults.VerbHangs, Verb: "create_ah", Count: 1}}
		for _, f := range want {
			must(t, d.slot.Faults.Inject(f))
		}
		must(t, d.slot.Faults.Inject(faults.Fault{Kind: faults.PortDown}))
		last := d.View().Session
		must(t, d.Reset(context.Background()))
		v := await(t, d, func(v device.View) bool { return v.Session != nil && v.Session != last })
		if v.Ports[0].State != hca.PortActive {
			t.Errorf("port is %s", v.Ports[0].State)
		}
		if got := d.slot.Faults.open.Planned(); !slices.Equal(got, want) {
			t.Errorf("planned %+v, want %+v", got, want)
		}
	})
}

// A verb that a fault has caused to hang returns when the faults are cleared.
func TestFaultsClearedEndHangs(t *testing.T) {
	bubble(t, realConfig(), func(_ *fakeKernel, d *real) {
		must(t, d.slot.Faults.Inject(faults.Fault{Kind: faults.VerbHangs, Verb: "alloc_pd"}))
		returned := make(chan error, 1)
		go func() {
			pd, err := d.slot.Faults.open.AllocPD()
			if err == nil {
				err = pd.Close()
			}
			returned <- err
		}()
		synctest.Wait()
		select {
		case err := <-returned:
			t.Fatalf("alloc_pd returned before: %v", err)
		default:
		}
		d.slot.Faults.Clear()
		synctest.Wait()
		select {
		case err := <-returned:
			must(t, err)
		default:
			t.Error("alloc_pd still hangs")
		}
	})
}

// An error that waiting cannot cure is reported at the start, and nothing is left open.
func TestRealDeviceRefusals(t *testing.T) {
	hardware := rxe("rxe0", 0, rxeGUID)
	hardware.Parent = ""
	virtual := rxe("rxe0", 0, rxeGUID)
	virtual.PCIAddr = ""
	with := func(how config.Reset) config.Device {
		cfg := realConfig()
		cfg.Reset = how
		return cfg
	}
	for _, c := range []struct {
		name   string
		device rdma.Device
		cfg    config.Device
		port   uint8
		want   error
		text   string
	}{
		{"no device", rxe("rxe1", 0, rxeGUID), realConfig(), 1, hca.ErrNoDevice, ""},
		{"no port", hardware, realConfig(), 2, hca.ErrInvalid, "there is no port 2, the device has 1"},
		{"link of hardware", hardware, with(config.ResetLink), 1, hca.ErrInvalid, "reset link works only for Soft-RoCE"},
		{"driver without function", virtual, with(config.ResetDriver), 1, hca.ErrInvalid, "needs a PCI function"},
		{"pci without function", virtual, with(config.ResetPCI), 1, hca.ErrInvalid, "needs a PCI function"},
		{"function without reset", hardware, with(config.ResetPCI), 1, hca.ErrInvalid, "cannot be reset alone"},
		{"function with two netdevs", rxe("rxe0", 0, rxeGUID), with(config.ResetDriver), 1, hca.ErrInvalid, "has 2 netdevs"},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newFakeKernel(t, c.device)
			k.function = fakeFunction{before: []string{"eth0", "eth1"}, fixed: true}
			_, err := k.newReal(c.cfg, c.port)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v", c.name, err)
			}
			if n := k.contexts(); n != 0 {
				t.Errorf("%s: %d contexts are open", c.name, n)
			}
		})
	}
}

// A port of InfiniBand is used like one of Ethernet.
func TestRealDeviceOnInfiniBand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		k.layer = hca.LinkLayerInfiniBand
		if _, err := k.newReal(realConfig(), 1); err != nil {
			t.Error(err)
		}
	})
}

// The name was given to another instance while it was opened: that is not the one
// that was looked for.
func TestRealDeviceReplacedWhileOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKernel(t, rxe("rxe0", 0, rxeGUID))
		k.during = func() { k.devices = []rdma.Device{rxe("rxe0", 1, rxeGUID)} }
		_, err := k.newReal(realConfig())
		if !errors.Is(err, hca.ErrNoDevice) || k.contexts() != 0 {
			t.Errorf("%v, %d contexts", err, k.contexts())
		}
	})
}

func TestChoose(t *testing.T) {
	last := rxe("rxe0", 0, rxeGUID)
	h := realHCA{cfg: realConfig(), known: identityOf(last), last: last}
	other := hca.GUID{7: 1}
	for _, c := range []struct {
		name    string
		devices []rdma.Device
		want    string // name and index
	}{
		{"none", nil, ""},
		{"another name and GUID", []rdma.Device{rxe("rxe5", 1, other)}, ""},
		{"the name alone", []rdma.Device{rxe("rxe0", 1, other)}, "rxe0 1"},
		{"the GUID alone", []rdma.Device{rxe("rxe5", 1, rxeGUID)}, "rxe5 1"},
		{"the GUID before the name", []rdma.Device{rxe("rxe0", 1, other), rxe("rxe5", 2, rxeGUID)}, "rxe5 2"},
		{"the same, in another order", []rdma.Device{rxe("rxe5", 2, rxeGUID), rxe("rxe0", 1, other)}, "rxe5 2"},
		{"both before one", []rdma.Device{rxe("rxe5", 2, rxeGUID), rxe("rxe0", 1, rxeGUID)}, "rxe0 1"},
	} {
		got := ""
		if d, ok := h.choose(c.devices); ok {
			got = fmt.Sprintf("%s %d", d.Name, d.Index)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestRealInfo(t *testing.T) {
	bubble(t, realConfig(), func(_ *fakeKernel, d *real) {
		if d.portGUID != rxeGUID { // MACs are derived from it
			t.Errorf("port GUID %s", d.portGUID)
		}
		i, ports := d.slot.Info(), d.View().Ports
		if i.Kind != KindSoftRoCE || i.HCA != "rxe0" || i.Underlay != "eth0" || i.Reset != "none" || len(ports) != 1 {
			t.Errorf("%+v, ports %+v", i, ports)
		}
	})
}
