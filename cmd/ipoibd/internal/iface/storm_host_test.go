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
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

// giveUpAfter is short, so that some devices are given up.
const giveUpAfter = time.Minute

// stormHost is a host that the storm hits.
type stormHost struct {
	*testHost
	hca    *backendtest.HCA
	slot   *backend.Slot
	ladder *recorder
	orders *sync.WaitGroup
}

// newHost starts host n, underlay 192.0.2.n, ib0 10.0.0.n.
func (s *storm) newHost(n byte, seed uint64) *stormHost {
	h := bareHost(s.T, s.fabric, n)
	under := backendtest.New(backendtest.Config{
		Fabric: s.fabric, Netdev: h.name, MTU: underlayMTU, Addr: h.under, GUID: h.guid(), Rand: rand.New(rand.NewPCG(seed, uint64(n))),
	})
	slot := backend.NewSlot(under, true, quiet)
	open := func(ctx context.Context) (hca.Device, error) {
		dev, err := slot.Open(ctx)
		if f, ok := dev.(*faults.Device); ok {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.faults = f
		}
		return dev, err
	}
	h.dev = device.New(device.Config{
		Name: "hca_" + h.name, Open: open, List: slot, Reset: slot.Reset,
		Grace: 5 * time.Second, GiveUpAfter: giveUpAfter, Journal: s.journal, Log: quiet,
	})
	cfg := testConfig()
	cfg.Name = "ib_" + h.name
	var err error
	if h.iface, err = New(cfg, h.tap, Env{Device: h.dev, Journal: s.journal, Log: quiet}); err != nil {
		s.Fatal(err)
	}
	x := &stormHost{testHost: h, hca: under, slot: slot, ladder: recordLadder(h.iface), orders: &s.orders}
	h.start()
	return x
}

// release makes the verbs return that hang in the instance that was opened last.
func (h *stormHost) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.faults != nil {
		h.faults.Release()
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
	if err := h.slot.Plug(backend.PluggedIn); err != nil && !errors.Is(err, backend.ErrNotPulledOut) {
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

// sendMarked sends a frame that the ledger follows.
func (h *testHost) sendMarked(l *ledger, from int, to netip.Addr) {
	mac, ok := h.neighbour(to)
	if !ok {
		h.t.Fatalf("%s does not know %s", h.name, to)
	}
	before := h.taken()
	h.send(mac, ipoib.EtherTypeIPv4, h.marked(l.next(from), to))
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
func (h *testHost) taken() uint64 {
	k, err := h.tap.KernelCounters()
	if err != nil {
		h.t.Fatal(err)
	}
	return k.TxPackets
}
