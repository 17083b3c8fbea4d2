package sm

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"ipoibd/scripts/vm/ibwire"
)

const (
	// queueLen is how many frames wait for a host that reads slowly, about a second of a guest's traffic.
	queueLen = 4096
	// smPort is the port of the node with the subnet manager.
	smPort = 1
	// toolPort is the port of the node by which the switch reads its own tables.
	toolPort = 2
	// firstPort is the port of host 0.
	firstPort = 3
)

// Switch forwards the packets of hosts. Its methods may be called from any goroutine.
type Switch struct {
	tool  *client
	hosts []*host
	stop  chan struct{}
	done  sync.WaitGroup

	mu     sync.Mutex // guards the fields below, and those of hosts that say so
	tables tables
	ports  []port // by number
	faults Faults
	err    error // why the switch no longer polls
}

// host is a port of the switch with a host of ours.
type host struct {
	number uint8
	client *client
	wire   *net.UnixConn // the switch's end
	guest  *os.File      // the host's end, until it is taken
	queue  chan []byte   // frames to the host

	// Guarded by the switch's mu.
	relay    relay
	control  ibwire.Control // of the last poll, without events
	told     ibwire.Control // as the host knows it
	raised   ibwire.Events  // besides those that follow from changes
	pathBits uint16         // of the SLIDs of its unicast packets
	counters Counters
}

// newSwitch attaches to the nodes of an ibsim and starts to forward. Number is that of its first client.
func newSwitch(base string, number uint32, tool string, nodes []string) (s *Switch, err error) {
	s = &Switch{stop: make(chan struct{}), ports: make([]port, firstPort+len(nodes))}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	if s.tool, err = attach(base, tool, number); err != nil {
		return nil, err
	}
	for i, node := range nodes {
		h := &host{number: uint8(firstPort + i), queue: make(chan []byte, queueLen), counters: newCounters()}
		if h.client, err = attach(base, node, number+1+uint32(i)); err != nil {
			return nil, err
		}
		s.hosts = append(s.hosts, h)
		if h.wire, h.guest, err = newWire(); err != nil {
			return nil, err
		}
		s.ports[h.number].attached = true
	}
	for _, h := range s.hosts {
		s.done.Go(func() { s.readWire(h) })
		s.done.Go(func() { s.writeWire(h) })
		s.done.Go(func() { s.readSim(h) })
	}
	s.done.Go(s.poll)
	return s, nil
}

// Wire returns the end of a wire for a host, for example for a guest. It can be taken once; the caller closes it.
func (s *Switch) Wire(i int) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.hosts[i].guest
	s.hosts[i].guest = nil
	return f
}

// Close ends the switch and waits for its goroutines. It returns why the switch has failed before, if it has. A second
// call returns the same.
func (s *Switch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.stop:
		return s.err
	default:
	}
	close(s.stop)
	for _, h := range s.hosts {
		_ = h.client.data.SetReadDeadline(time.Now())
		_ = h.wire.SetDeadline(time.Now())
	}
	s.mu.Unlock()
	s.done.Wait()
	s.mu.Lock()
	s.err = errors.Join(s.err, s.release())
	return s.err
}

// release closes everything that exists, once nothing uses it.
func (s *Switch) release() (err error) {
	for _, h := range s.hosts {
		if h.client != nil {
			err = errors.Join(err, h.client.close())
		}
		if h.wire != nil {
			_ = h.wire.Close()
		}
		if h.guest != nil {
			_ = h.guest.Close()
		}
	}
	if s.tool != nil {
		err = errors.Join(err, s.tool.close())
	}
	return err
}

// readWire handles the frames of a host until the wire ends.
func (s *Switch) readWire(h *host) {
	b := make([]byte, ibwire.MaxFrame+1)
	for {
		n, err := h.wire.Read(b)
		if err != nil {
			return
		}
		s.handle(h, b[:n])
	}
}

// handle handles a frame of a host.
func (s *Switch) handle(h *host, frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	etherType, body, ok := ibwire.Split(frame)
	switch {
	case ok && etherType == ibwire.TypeControl:
		h.counters.Hellos++
		h.told = ibwire.Control{}
	case ok && etherType == ibwire.TypePacket:
		s.handlePacket(h, body)
	default: // such as the IPv6 multicast of the guest's netdev
		h.counters.Drops[DropFrame]++
	}
}

func (s *Switch) handlePacket(h *host, body []byte) {
	var p ibwire.Packet
	if err := p.Parse(body); err != nil {
		h.counters.Drops[DropPacket]++
		return
	}
	h.counters.Sent++
	h.counters.PKeys[p.PKey]++
	if p.DestQPN != qpGeneral {
		h.counters.Lanes[Lane{p.PKey, p.SL}]++
		if !ibwire.IsMulticast(p.DLID) && h.pathBits != 0 {
			p.SLID |= h.pathBits & (1<<h.control.LMC - 1)
			ibwire.SetSLID(body, p.SLID)
		}
	}
	if p.Global && !ibwire.IsMulticast(p.DLID) {
		h.counters.Global++
	}
	v := forward(&s.tables, s.ports, h.number, &p)
	for _, out := range v.out {
		to := s.hosts[out-firstPort]
		if p.SLID&(1<<h.control.LMC-1) != 0 {
			to.counters.PathBits++
		}
		s.queue(to, ibwire.Frame(ibwire.TypePacket, body), ibwire.IsMulticast(p.DLID))
	}
	if v.drop != "" {
		h.counters.Drops[v.drop]++
	}
	if v.relay {
		s.handleRequest(h, &p)
	}
}

// handleRequest relays a request to the SA, or applies a fault to it.
func (s *Switch) handleRequest(h *host, p *ibwire.Packet) {
	out, answer, drop := h.relay.take(p, &s.faults)
	switch {
	case drop != "":
		h.counters.Drops[drop]++
	case answer != nil:
		h.counters.Answers++
		s.queue(h, ibwire.Frame(ibwire.TypePacket, answer.Append(nil)), false)
	case h.client.send(out) != nil: // ibsim has ended, which the poll reports
		h.counters.Drops[DropReturned]++
	default:
		h.counters.Requests++
	}
}

// queue gives a host a packet.
func (s *Switch) queue(h *host, frame []byte, multicast bool) {
	select {
	case h.queue <- frame:
		h.counters.Received++
		if multicast {
			h.counters.Multicast++
		}
	default:
		h.counters.Drops[DropQueue]++
	}
}

// writeWire writes the frames for a host. Errors mean that it has ended.
func (s *Switch) writeWire(h *host) {
	for {
		select {
		case <-s.stop:
			return
		case frame := <-h.queue:
			_, _ = h.wire.Write(frame)
		}
	}
}

// readSim passes on what ibsim sends to a host's port.
func (s *Switch) readSim(h *host) {
	var e envelope
	for h.client.receive(&e) == nil {
		s.mu.Lock()
		p, drop := h.relay.give(&e)
		if p != nil {
			h.counters.Answers++
			s.queue(h, ibwire.Frame(ibwire.TypePacket, p.Append(nil)), false)
		} else if drop != "" {
			h.counters.Drops[drop]++
		}
		s.mu.Unlock()
	}
}

// Port returns the attributes of a host's port; the host has been informed of them, unless its queue is full.
func (s *Switch) Port(i int) ibwire.Control {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts[i].control
}

// Counters returns the counters of a host's port.
func (s *Switch) Counters(i int) Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts[i].counters.clone()
}

// Members returns the hosts on whose ports the packets to a group leave.
func (s *Switch) Members(mlid uint16) (hosts []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, number := range s.tables.multicast(mlid).ports() {
		if number >= firstPort && int(number) < len(s.ports) {
			hosts = append(hosts, int(number)-firstPort)
		}
	}
	return hosts
}

// Err returns why the switch no longer follows the subnet manager, or nil.
func (s *Switch) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SetFaults replaces the faults of requests to the SA, of all hosts.
func (s *Switch) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// SetPathBits sets path bits in the SLIDs of the unicast packets of a host, except for those to QP1, as far as the LMC has
// room for them: a host may send each packet from any of its LIDs.
func (s *Switch) SetPathBits(i int, bits uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[i].pathBits = bits
}

// Raise raises events at a host, with the next control frame.
func (s *Switch) Raise(i int, events ibwire.Events) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[i].raised |= events
}
