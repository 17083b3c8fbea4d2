package memsubnet

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// SA is a subnet administrator of a test.
type SA interface {
	// Answer returns the answers to a MAD of 256 bytes from the port with a LID, path bits included, and a GID. The
	// SA may keep mad. It may call the subnet, except Close. One call at a time, unless SM.Fate delays a request.
	Answer(from uint16, gid hca.GID, mad []byte) [][]byte
}

// SM is the subnet manager as its ports see it, and as a test replaces it.
type SM struct {
	LID uint16
	SL  uint8 // of messages to the subnet manager and from it
	SA  SA    // nil: no subnet administrator answers
	// Fate decides about each MAD to the SA, and from it: whether it is lost, or by how much it is delayed
	// besides the fabric's own delay. nil: neither. Any goroutine may call it.
	Fate func(mad []byte, toSA bool) (delay time.Duration, lost bool)
}

// Constants of general services MADs.
const (
	qkeyGSI = hca.QKey(0x80010000)       // of QP1 (IBA 3.5.10)
	madLen  = 256                        // bytes (IBA 13.4.2)
	basic   = ^hca.PKeyMembership        // the bits of a P_Key that name the partition
	smMTU   = int(hca.MaxMTU) + overhead // of its netdev
)

// smGUID is the GUID of the subnet manager's port.
var smGUID = hca.GUID{'m', 'a', 'n', 'a', 'g', 'e', 'r'}

// manager is the subnet manager's port and QP1.
type manager struct {
	subnet *Subnet
	sa     SA
	fate   func(mad []byte, toSA bool) (delay time.Duration, lost bool) // or nil
	netdev *memfabric.Port
	wire   netip.Addr
	sendMu sync.Mutex // the netdev has one sender at a time
	ending sync.Once
	closed chan struct{}
	tasks  sync.WaitGroup
}

// request is a MAD on the way to the SA.
type request struct {
	from headers
	roce.UDSend
}

func startManager(s *Subnet, sm SM) *manager {
	m := &manager{subnet: s, sa: sm.SA, fate: sm.Fate, wire: wireAddr(smGUID), closed: make(chan struct{})}
	m.netdev = s.fabric.Attach("subnet manager", smMTU, m.wire)
	m.tasks.Go(m.receive)
	return m
}

func (m *manager) close() {
	m.ending.Do(func() { close(m.closed) })
	m.netdev.Close()
	m.tasks.Wait()
}

// receive passes MADs on until the netdev is closed.
func (m *manager) receive() {
	pkts := make([]transport.Packet, 1)
	for {
		n, err := m.netdev.Recv(pkts)
		if err != nil {
			return
		}
		if n == 0 {
			continue
		}
		pkt := &pkts[0]
		r := request{from: m.subnet.numbered(pkt.TOS, pkt.TTL)}
		if r.Parse(slices.Clone(pkt.Data)) != nil || !m.acceptable(&r) {
			m.drop(DropBadMAD)
			continue
		}
		m.convey(r.Payload, true, func() { m.answer(&r) })
	}
}

// acceptable reports whether QP1 gets a request.
func (m *manager) acceptable(r *request) bool {
	m.subnet.mu.Lock()
	defer m.subnet.mu.Unlock()
	return r.QKey == qkeyGSI && r.PKey&basic == basic && r.from.sl == m.subnet.view.SL &&
		!r.from.global && len(r.Payload) == madLen
}

func (m *manager) drop(why Drop) {
	m.subnet.mu.Lock()
	defer m.subnet.mu.Unlock()
	m.subnet.drops[why]++
}

// convey calls deliver, now or later, unless the MAD is lost.
func (m *manager) convey(mad []byte, toSA bool, deliver func()) {
	var delay time.Duration
	if m.fate != nil {
		var lost bool
		if delay, lost = m.fate(mad, toSA); lost {
			m.drop(DropLostMAD)
			return
		}
	}
	if delay <= 0 {
		deliver()
		return
	}
	m.tasks.Go(func() {
		select {
		case <-time.After(delay):
			deliver()
		case <-m.closed:
		}
	})
}

func (m *manager) answer(r *request) {
	s := m.subnet
	s.mu.Lock()
	var gid hca.GID
	if p := s.portAt(r.from.slid); p != nil && p.hasGID(0) {
		gid = p.attr.GIDs[0].GID
	}
	s.mu.Unlock()
	for _, mad := range m.sa.Answer(r.from.slid, gid, r.Payload) {
		m.convey(mad, false, func() { m.reply(r, mad) })
	}
}

// reply sends an answer to the queue pair that asked, as a full member.
func (m *manager) reply(r *request, mad []byte) {
	s := m.subnet
	s.mu.Lock()
	to := s.portAt(r.from.slid)
	if to == nil {
		s.drops[DropNoLID]++
		s.mu.Unlock()
		return
	}
	traffic, hop := s.number(headers{slid: s.view.LID, sl: s.view.SL})
	s.mu.Unlock()
	packet := slices.Concat(make([]byte, roce.HeaderLen), mad, make([]byte, roce.PadFor(len(mad))+roce.ICRCLen))
	bth := roce.BTH{
		Opcode: roce.OpcodeUDSendOnly, Migrated: true, Pad: uint8(roce.PadFor(len(mad))),
		PKey: r.PKey | hca.PKeyMembership, DestQPN: r.SrcQPN,
	}
	deth := roce.DETH{QKey: qkeyGSI, SrcQPN: hca.QPNGSI}
	bth.Put(packet)
	deth.Put(packet[roce.BTHLen:])
	m.sendMu.Lock()
	defer m.sendMu.Unlock()
	path := roce.Path{Src: m.wire, Dst: to.wire, SrcPort: m.netdev.SrcPort()}
	end := len(packet) - roce.ICRCLen
	roce.PutICRC(packet[end:], roce.ICRC(&path, packet[:end]))
	_, _ = m.netdev.Send([]transport.Packet{{ // it fails only once the netdev is closed
		Src: m.wire, Dst: to.wire, TOS: traffic, TTL: hop, Data: packet,
	}})
}
