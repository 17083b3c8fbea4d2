package infiniband

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/ibwire"
	"ipoibd/scripts/vm/kernel"
)

// randomFrames is how many random frames an HCA must survive.
const randomFrames = 2000

// The module refuses parameters that make no sense, an HCA survives every malformed frame, and HCAs go with their
// netdevs and with the module.
func TestModule(t *testing.T) {
	guest.Require(t)
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		ours, theirs := newWire(t)
		_, unused := newWire(t)
		g := guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Wire: theirs}, {Wire: unused}}})
		g.LoadInfiniBand(0x1001, 0x2001)
		const lid = 5
		sendControl(t, ours, lid)
		waitActive(t, g, 0)
		// The other port has no switch, so it stays down, and says hello.
		if state := read(g, "/sys/class/infiniband/ibwire1/ports/1/state"); state != "1: DOWN" {
			t.Errorf("the port without a switch is %s, want down", state)
		}

		sendMalformed(t, ours, lid)
		sendControl(t, ours, lid+1) // arrives behind them
		waitFor(t, g, "/sys/class/infiniband/ibwire0/ports/1/lid", fmt.Sprintf("%#x", lid+1))
		if state := read(g, "/sys/class/infiniband/ibwire0/ports/1/state"); state != "4: ACTIVE" {
			t.Errorf("the port is %s after malformed frames, want active", state)
		}

		g.Run("sh", "-ec", "basename $(readlink /sys/class/net/eth0/device) > /sys/bus/virtio/drivers/virtio_net/unbind")
		waitGone(t, g, "/sys/class/infiniband/ibwire0")
		read(g, "/sys/class/infiniband/ibwire1/node_guid")
		g.Run("rmmod", "ibwire")
		waitGone(t, g, "/sys/class/infiniband/ibwire1")

		for parameters, want := range map[string]string{
			"": "Invalid argument", "netdevs=eth1": "Invalid argument", "guids=1": "Invalid argument",
			"netdevs=eth1,eth1 guids=1": "Invalid argument", "netdevs=nosuch guids=1": "No such device", "netdevs=eth1 guids=0": "No such device",
			"netdevs=lo guids=1":                "No such device",
			"netdevs=1,2,3,4,5,6,7,8,9 guids=1": "Invalid argument",
		} {
			p := g.Start("sh", "-c", "busybox insmod /run/infiniband/ibwire.ko "+parameters)
			if result := p.Wait(carrierLimit); result.OK() || !strings.Contains(strings.ToLower(p.Stderr()), strings.ToLower(want)) {
				t.Errorf("with parameters %q: %v, %s want %q", parameters, result, p.Stderr(), want)
			}
		}
		g.Run("busybox", "insmod", "/run/infiniband/ibwire.ko", "netdevs=eth1", "guids=0x2001")
		read(g, "/sys/class/infiniband/ibwire0/node_guid")
		requireQuietKernel(t, g)
	})
}

// newWire returns both ends of a wire, the second for a guest.
func newWire(t *testing.T) (ours *net.UnixConn, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "wire")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	ours = conn.(*net.UnixConn)
	drained := make(chan struct{})
	go func() { // what the guest sends
		defer close(drained)
		b := make([]byte, ibwire.MaxFrame)
		for {
			if _, err := ours.Read(b); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		<-drained
	})
	return ours, os.NewFile(uintptr(fds[1]), "wire")
}

// sendFrame sends a frame to a guest.
func sendFrame(t *testing.T, wire *net.UnixConn, frame []byte) {
	t.Helper()
	if err := wire.SetWriteDeadline(time.Now().Add(carrierLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.Write(frame); err != nil {
		t.Fatalf("send a frame: %v", err)
	}
}

func activePort(lid uint16) ibwire.Control {
	return ibwire.Control{Prefix: 0xfe80 << 48, LID: lid, SMLID: 1, State: hca.PortActive, MTU: 4, PKeys: [ibwire.PKeys]hca.PKey{0xffff}}
}

func sendControl(t *testing.T, wire *net.UnixConn, lid uint16) {
	t.Helper()
	c := activePort(lid)
	sendFrame(t, wire, ibwire.Frame(ibwire.TypeControl, c.Append(nil)))
}

// sendMalformed sends every truncation of valid frames, control frames with each field out of range, and random frames.
func sendMalformed(t *testing.T, wire *net.UnixConn, lid uint16) {
	t.Helper()
	gid := hca.GID{0: 0xfe, 1: 0x80, 14: 0x10, 15: 1}
	packets := []ibwire.Packet{
		{SLID: 9, DLID: lid, PKey: 0xffff, DestQPN: 1, QKey: 0x80010000, SrcQPN: 1, Payload: make([]byte, 256)},
		{SLID: 9, DLID: lid, PKey: 0xffff, DestQPN: 0, SrcQPN: 0, Payload: make([]byte, 256)},
		{SLID: 9, DLID: lid, Global: true, DGID: gid, PKey: 0xffff, DestQPN: 1, QKey: 0x80010000, SrcQPN: 1, Payload: []byte("abc")},
		{SLID: 9, DLID: 0xc000, Global: true, DGID: hca.GID{0: 0xff}, PKey: 0xffff, DestQPN: hca.QPNMulticast, Payload: []byte("abc")},
		{SLID: 9, DLID: 0xc000, PKey: 0xffff, DestQPN: hca.QPNMulticast, Payload: []byte("abc")},
		{SLID: 9, DLID: lid, PKey: 0xffff, DestQPN: 0x1234, Payload: make([]byte, ibwire.MaxPayload)},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range packets {
		whole := ibwire.Frame(ibwire.TypePacket, p.Append(nil))
		for n := 14; n <= min(len(whole), 400); n++ {
			sendFrame(t, wire, whole[:n])
		}
		for range randomFrames / len(packets) { // with a few bytes changed
			damaged := append([]byte(nil), whole...)
			for range 1 + rng.IntN(4) {
				damaged[14+rng.IntN(min(80, len(damaged)-14))] = byte(rng.Uint32())
			}
			sendFrame(t, wire, damaged)
		}
	}
	for _, spoil := range []func(*ibwire.Control){
		func(c *ibwire.Control) { c.LID = ibwire.FirstMulticast },
		func(c *ibwire.Control) { c.SMLID = ibwire.Permissive },
		func(c *ibwire.Control) { c.SMSL = 16 },
		func(c *ibwire.Control) { c.LMC = 8 },
		func(c *ibwire.Control) { c.State = hca.PortNop },
		func(c *ibwire.Control) { c.State = hca.PortActiveDefer + 1 },
		func(c *ibwire.Control) { c.MTU = 0 },
		func(c *ibwire.Control) { c.MTU = 6 },
	} {
		c := activePort(0x77)
		spoil(&c)
		sendFrame(t, wire, ibwire.Frame(ibwire.TypeControl, c.Append(nil)))
	}
	c := activePort(0x77)
	whole := c.Append(nil)
	for n := range whole {
		frame := append([]byte(nil), ibwire.Frame(ibwire.TypeControl, nil)[:14]...)
		sendFrame(t, wire, append(frame, whole[:n]...))
	}
	c = activePort(lid)
	c.Events = ^ibwire.Events(0) // also those of queues and of the device, which are no events of a port
	sendFrame(t, wire, ibwire.Frame(ibwire.TypeControl, c.Append(nil)))
}

// waitGone waits until a file of a guest no longer exists.
func waitGone(t *testing.T, g *guest.Guest, file string) {
	t.Helper()
	eventually(t, carrierLimit, file+" is gone", func() bool { return !g.Try("test", "-e", file) })
}
