package sm

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// Host is a host within the test: the other end of a wire.
type Host struct {
	tb       testing.TB
	wire     *net.UnixConn
	packets  chan ibwire.Packet
	controls chan ibwire.Control
}

// hostQueue is how many packets and control frames wait for a test; later ones are lost.
const hostQueue = 256

// NewHost takes a host's end of the wire. It ends with the test, or earlier with the switch.
func (s *Subnet) NewHost(i int) *Host {
	s.tb.Helper()
	wire, err := wireConn(s.Wire(i))
	if err != nil {
		s.tb.Fatal(err)
	}
	h := &Host{tb: s.tb, wire: wire, packets: make(chan ibwire.Packet, hostQueue), controls: make(chan ibwire.Control, hostQueue)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.read()
	}()
	s.tb.Cleanup(func() {
		_ = wire.Close()
		<-done
	})
	return h
}

func (h *Host) read() {
	for {
		b := make([]byte, ibwire.MaxFrame)
		n, err := h.wire.Read(b)
		if err != nil {
			return
		}
		var p ibwire.Packet
		var c ibwire.Control
		switch etherType, body, _ := ibwire.Split(b[:n]); {
		case etherType == ibwire.TypePacket && p.Parse(body) == nil:
			select {
			case h.packets <- p:
			default:
			}
		case etherType == ibwire.TypeControl && c.Parse(body):
			select {
			case h.controls <- c:
			default:
			}
		}
	}
}

// Hello asks the switch for a control frame.
func (h *Host) Hello() {
	h.tb.Helper()
	h.write(ibwire.Frame(ibwire.TypeControl, nil))
}

// Send sends a packet.
func (h *Host) Send(p *ibwire.Packet) {
	h.tb.Helper()
	h.write(ibwire.Frame(ibwire.TypePacket, p.Append(nil)))
}

func (h *Host) write(frame []byte) {
	h.tb.Helper()
	if _, err := h.wire.Write(frame); err != nil {
		h.tb.Fatalf("send a frame: %v", err)
	}
}

// Packets returns the packets that have arrived, in their order.
func (h *Host) Packets() <-chan ibwire.Packet { return h.packets }

// Receive waits for the next packet.
func (h *Host) Receive() ibwire.Packet {
	h.tb.Helper()
	return next(h, h.packets, "packet")
}

// Control waits for the next control frame.
func (h *Host) Control() ibwire.Control {
	h.tb.Helper()
	return next(h, h.controls, "control frame")
}

func next[T any](h *Host, from <-chan T, what string) (out T) {
	h.tb.Helper()
	select {
	case out = <-from:
	case <-time.After(upLimit):
		h.tb.Fatalf("no %s within %v", what, upLimit)
	}
	return out
}

// portGID returns the GID of a port.
func portGID(prefix, guid uint64) (gid hca.GID) {
	binary.BigEndian.PutUint64(gid[:], prefix)
	binary.BigEndian.PutUint64(gid[8:], guid)
	return gid
}
