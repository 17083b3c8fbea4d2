package iface

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/backend/backendtest"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/resetlock/resetlocktest"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/link/kernel/capsule"
	"ipoibd/link/linktest"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

const (
	giveUpAfter = time.Minute // short, so that some devices are given up
	stormGrace  = 5 * time.Second
)

// stormHost is a host that the storm hits.
type stormHost struct {
	*testHost
	queues    []*linktest.Fake // of its TAP, one for each lane
	hca       *backendtest.HCA
	slot      *backend.Slot
	ladder    *recorder
	orders    *sync.WaitGroup
	opening   opening
	instances []*faults.Device // all that were opened; guarded by mu

	locks      resetlocktest.Files        // of its HCA
	neighbours []*resetlocktest.Neighbour // other daemons on it, which share the HCA
}

// opening is what the next openings of a device meet.
type opening struct {
	mu    sync.Mutex
	fails []error       // of the next ones
	hangs time.Duration // of the next one
	short bool          // the host has no descriptors left
	query error         // of query_port, also once the device is open
}

// meet waits as long as an opening is to hang, and returns the error that it is to fail with.
func (o *opening) meet() (err error) {
	o.mu.Lock()
	hangs := o.hangs
	o.hangs = 0
	if o.short {
		err = hca.ErrNoMemory
	} else if len(o.fails) > 0 {
		err, o.fails = o.fails[0], o.fails[1:]
	}
	o.mu.Unlock()
	time.Sleep(hangs)
	if err != nil {
		return &hca.VerbError{Verb: "open_device", On: "in a storm", Err: err}
	}
	return nil
}

// queried is a device whose query_port may fail.
type queried struct {
	*faults.Device
	opening *opening
}

func (d queried) QueryPort(num uint8) (hca.PortAttr, error) {
	d.opening.mu.Lock()
	err := d.opening.query
	d.opening.mu.Unlock()
	if err != nil {
		return hca.PortAttr{}, &hca.VerbError{Verb: "query_port", On: "in a storm", Err: err}
	}
	return d.Device.QueryPort(num)
}

// change changes what openings meet.
func (o *opening) change(how func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	how()
}

// newHost starts host n, underlay 192.0.2.n, ib0 10.0.0.n. Even seeds give it two lanes. Host 2 shares
// its HCA with one or two other daemons.
func (s *storm) newHost(n byte, seed uint64) *stormHost {
	lanes := 2 - int(seed%2)
	h := bareHost(s.T, s.fabric, n)
	x := &stormHost{testHost: h, queues: []*linktest.Fake{h.tap.Fake}, orders: &s.orders}
	for range lanes - 1 {
		q := linktest.NewFake("ib0")
		q.SetUp(true)
		if err := q.SetCarrier(true); err != nil {
			s.Fatal(err)
		}
		x.queues, h.tap.more = append(x.queues, q), append(h.tap.more, q)
	}
	under := backendtest.New(backendtest.Config{
		Fabric: s.fabric, Netdev: h.name, MTU: underlayMTU, Lanes: lanes, Addr: h.under, GUID: h.guid(), Rand: rand.New(rand.NewPCG(seed, uint64(n))),
	})
	slot := backend.NewSlot(under, true, quiet)
	open := func(ctx context.Context) (hca.Device, error) {
		if err := x.opening.meet(); err != nil {
			return nil, err
		}
		dev, err := slot.Open(ctx)
		if f, ok := dev.(*faults.Device); ok {
			h.mu.Lock()
			defer h.mu.Unlock()
			x.instances = append(x.instances, f)
			return queried{f, &x.opening}, err
		}
		return dev, err
	}
	conf := device.Config{
		Name: "hca_" + h.name, Open: open, List: slot, Reset: slot.Reset, Complete: slot.Reset,
		Grace: stormGrace, GiveUpAfter: giveUpAfter, Journal: s.journal, Log: quiet,
	}
	if n == 2 {
		conf.Coordinator, conf.Means, conf.Locks = "in memory", "soft", x.locks.Open
		s.addNeighbours(x, 1+int(seed/2%2), seed)
	}
	h.dev = device.New(conf)
	cfg := testConfig()
	cfg.Name = "ib_" + h.name
	var err error
	if h.iface, err = onTAP(cfg, h.tap, Env{Device: h.dev, Journal: s.journal, Log: quiet, Lanes: lanes}); err != nil {
		s.Fatal(err)
	}
	x.hca, x.slot, x.ladder = under, slot, recordLadder(h.iface)
	h.start()
	for _, q := range x.queues[1:] {
		s.stacks.Go(func() { h.stackOn(s.ctx, q) })
	}
	return x
}

func (s *storm) addNeighbours(h *stormHost, count int, seed uint64) {
	h.locks.T, h.locks.Seen = s.T, s.seen.count
	h.locks.InUse = func() bool { return h.dev.View().Session != nil }
	for i := range count {
		n := resetlocktest.NewNeighbour(&h.locks, stormGrace, rand.New(rand.NewPCG(seed, uint64(10+i))))
		h.neighbours = append(h.neighbours, n)
		s.stacks.Go(func() { n.Run(s.ctx) })
	}
}

// release makes the verbs return that hang in any instance.
func (h *stormHost) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.instances {
		f.Release()
	}
}

// park parks the interface, as for a hand-over that is rolled back after a time.
func (h *stormHost) park(pause time.Duration) {
	h.orders.Go(func() {
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		defer cancel()
		p, err := h.iface.Park(ctx)
		if err != nil {
			return // a recovery is under way
		}
		_, _ = p.Export(capsule.NewWriter()) // a device that hangs in a post is found now
		time.Sleep(pause)
		p.Resume()
	})
}

// starve takes the host's last descriptors, or gives them back: nothing can be opened or created.
func (h *stormHost) starve(on bool) {
	h.opening.change(func() { h.opening.short = on })
	if on {
		strikeNow(faults.Fault{Kind: faults.CreateQPFails, Count: 3})(h)
	}
}

// port is the netdev of the current instance.
func (h *stormHost) port() *memfabric.Port { return h.hca.Last().Port }

// plugOther puts another HCA in the place of the host's.
func (h *stormHost) plugOther() {
	other := h.guid()
	other[0] ^= 4
	h.hca.Plug(other)
}

// replug puts the host's HCA back, whatever took it away.
func (h *stormHost) replug() {
	h.hca.Plug(h.guid())
	if err := h.slot.Faults.Plug(backend.PluggedIn); err != nil && !errors.Is(err, backend.ErrNotPulledOut) {
		h.t.Error(err)
	}
}

// order is an operator's command, which may have to wait, and may be refused.
type order = func(context.Context) error

func (h *stormHost) command(o order) { h.orders.Go(func() { _ = o(h.t.Context()) }) }

// rung requests a rung of the interface.
func (h *stormHost) rung(r qprecovery.Rung) {
	h.command(func(ctx context.Context) error { return h.iface.Reset(ctx, r) })
}

// straighten undoes lasting changes of the netdev and the port.
func (h *stormHost) straighten() {
	p := h.port()
	p.SetUp(true)
	p.SetMTU(underlayMTU)
	p.AddAddr(h.under)
	p.SetWritable(true)
	strikeNow(faults.Fault{Kind: faults.PortUp})(h)
	h.untoggle(faults.GIDChange)
	h.untoggle(faults.PKeyChange)
}

// untoggle undoes a fault that a second fault of the same kind undoes.
func (h *stormHost) untoggle(k faults.Kind) {
	session := h.dev.View().Session
	if session == nil {
		return // it ended with its instance
	}
	for _, c := range session.Counters() {
		if c.Name == "fault_"+k.String() && c.Value%2 == 1 {
			strikeNow(faults.Fault{Kind: k})(h)
		}
	}
}

// sendMarked sends a frame that the ledger follows, through a queue of the TAP.
func (h *stormHost) sendMarked(l *ledger, queue *linktest.Fake, from int, to netip.Addr) {
	mac, ok := h.neighbour(to)
	if !ok {
		h.t.Fatalf("%s does not know %s", h.name, to)
	}
	before := h.taken()
	queue.Send(h.frame(mac, ipoib.EtherTypeIPv4, h.marked(l.next(from), to)))
	if h.taken() > before {
		l.give(from)
	}
}

// marked returns an IPv4 packet with a mark.
func (h *testHost) marked(mark uint64, to netip.Addr) []byte {
	p := make([]byte, 64+mark%1200)
	p[0], p[8], p[9] = 0x45, 64, markProtocol
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	src, dst := h.ip.As4(), to.As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	binary.BigEndian.PutUint64(p[markAt:], mark)
	return p
}

// taken returns how many frames the kernel accepted from the host.
func (h *stormHost) taken() (n uint64) {
	for _, q := range h.queues {
		k, err := q.KernelCounters()
		if err != nil {
			h.t.Fatal(err)
		}
		n += k.TxPackets
	}
	return n
}
