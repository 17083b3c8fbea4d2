package iface

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/link"
	"ipoibd/link/linktest"
	"ipoibd/ud/ipoib"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// tap is a TAP in memory.
type tap struct {
	*linktest.Fake
	neighbours []link.Neighbour
}

func (t *tap) SetMTU(mtu int) error {
	t.Fake.SetMTU(mtu)
	return nil
}

func (t *tap) Neighbours() ([]link.Neighbour, error) { return t.neighbours, nil }

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

	fabric *memfabric.Fabric
	mu     sync.Mutex
	port   *memfabric.Port
	absent bool
	mtu    int

	inbox chan []byte // IPv4 packets for the host
	arp   map[netip.Addr]ipoib.MAC
	stop  func()
}

// newHost starts host n of a fabric: underlay 192.0.2.n, ib0 10.0.0.n.
func newHost(t *testing.T, fabric *memfabric.Fabric, n byte, mtu int) *testHost {
	t.Helper()
	h := &testHost{
		t: t, name: string('a' + rune(n) - 1), mtu: mtu, fabric: fabric,
		under: netip.AddrFrom4([4]byte{192, 0, 2, n}), ip: netip.AddrFrom4([4]byte{10, 0, 0, n}),
		tap: &tap{Fake: linktest.NewFake("ib0")}, inbox: make(chan []byte, 64), arp: map[netip.Addr]ipoib.MAC{},
	}
	h.dev = device.New("soft", h.open, quiet)
	cfg := config.NewInterface()
	cfg.SendWRs, cfg.RecvWRs = 128, 128
	f, err := New(cfg, h.tap, h.dev, quiet)
	if err != nil {
		t.Fatal(err)
	}
	h.iface = f
	h.start()
	return h
}

func (h *testHost) open(context.Context) (hca.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.absent {
		return nil, errors.New("netdev is not there")
	}
	h.port = h.fabric.Attach(h.name, h.mtu, h.under)
	return soft.Open(soft.Config{Name: "soft", Transport: h.port})
}

// start runs the device, the interface and the host's stack until stop.
func (h *testHost) start() {
	devCtx, stopDev := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(context.Background())
	var dev, wg sync.WaitGroup
	dev.Go(func() { h.dev.Run(devCtx) })
	wg.Go(func() {
		if err := h.iface.Run(ctx); err != nil {
			h.t.Errorf("%s: %v", h.name, err)
		}
	})
	wg.Go(func() { h.stack(ctx) })
	h.stop = func() {
		stop()
		wg.Wait()
		stopDev()
		dev.Wait()
		if err := h.iface.Close(); err != nil {
			h.t.Errorf("%s: %v", h.name, err)
		}
	}
	synctest.Wait()
}

// unplug takes the netdev away; plug gives it back.
func (h *testHost) unplug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.absent = true
	h.port.Remove()
}

func (h *testHost) plug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.absent = false
}

// up is `ip link set ib0 up` with an address.
func (h *testHost) up() {
	h.tap.AddAddr(netip.PrefixFrom(h.ip, 24))
	h.tap.SetUp(true)
	synctest.Wait()
}

func (h *testHost) mac() ipoib.MAC {
	st, err := h.tap.State()
	if err != nil {
		h.t.Fatal(err)
	}
	return st.MAC
}

func (h *testHost) status() control.Interface {
	s, err := h.iface.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// stack answers ARP and keeps IPv4 packets.
func (h *testHost) stack(ctx context.Context) {
	for {
		frame, err := h.tap.Recv(ctx)
		if err != nil {
			return
		}
		switch binary.BigEndian.Uint16(frame[12:]) {
		case uint16(ipoib.EtherTypeARP):
			h.onARP(frame[14:])
		case uint16(ipoib.EtherTypeIPv4):
			h.inbox <- frame
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
	if a.Op == 1 && a.TPA == h.ip && a.SPA != h.ip {
		h.send(a.SHA, ipoib.EtherTypeARP, ipoib.EtherARP{Op: 2, SHA: h.mac(), SPA: h.ip, THA: a.SHA, TPA: a.SPA}.Append(nil))
	}
}

func (h *testHost) send(dst ipoib.MAC, t ipoib.EtherType, body []byte) {
	src := h.mac()
	frame := append(append(dst[:len(dst):len(dst)], src[:]...), byte(t>>8), byte(t))
	h.tap.Send(append(frame, body...))
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
	p := make([]byte, size)
	p[0], p[8], p[9] = 0x45, 64, 253
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	src, dst := h.ip.As4(), to.As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	for i := 20; i < size; i++ {
		p[i] = mark
	}
	h.send(mac, ipoib.EtherTypeIPv4, p)
}

// takeIP returns the next IPv4 frame, nil when there is none.
func (h *testHost) takeIP() []byte {
	synctest.Wait()
	select {
	case f := <-h.inbox:
		return f
	default:
		return nil
	}
}
