package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tapCapture records the frames of a host's ib0 as its kernel sends and receives them: uncut,
// with their virtio headers.
type tapCapture struct {
	tb   testing.TB
	fd   int
	ends atomic.Bool // it need not record more
	done chan struct{}

	mu sync.Mutex
	// frames by direction; complete once done is closed.
	sent, received []offloaded
}

// offloaded is a frame and the work that its sender left to others.
type offloaded struct {
	header [virtioLen]byte
	frame  []byte
}

const (
	// captureBuffer is the size of a capture's buffer in bytes.
	captureBuffer = 1 << 30
	// captureLull is how long no more frames may come before the captures end.
	captureLull = 200 * time.Millisecond
	// captureWait is how long a capture waits for a frame at a time.
	captureWait = 10 * time.Millisecond
)

// captureTAP starts a capture of ib0.
func (h *host) captureTAP() *tapCapture {
	h.tb.Helper()
	c := &tapCapture{tb: h.tb, done: make(chan struct{})}
	var err error
	h.Do(func() { c.fd, err = openCapture() })
	if err != nil {
		h.tb.Fatalf("capture %s: %v", ifName, err)
	}
	go c.read()
	return c
}

func openCapture() (fd int, err error) {
	dev, err := net.InterfaceByName(ifName)
	if err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: captureWait.Microseconds()}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}),
	)
}

// read reads until the capture ends.
func (c *tapCapture) read() {
	defer close(c.done)
	b := make([]byte, 1<<17)
	for {
		ends := c.ends.Load()
		n, from, err := unix.Recvfrom(c.fd, b, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) && ends:
			return
		case err != nil:
			continue
		}
		f := offloaded{[virtioLen]byte(b), slices.Clone(b[virtioLen:n])}
		c.mu.Lock()
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			c.sent = append(c.sent, f)
		} else {
			c.received = append(c.received, f)
		}
		c.mu.Unlock()
	}
}

// soFar returns the frames that were recorded so far.
func (c *tapCapture) soFar() (sent, received []offloaded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent, c.received
}

// end ends the capture. It fails the test if the capture lost a frame.
func (c *tapCapture) end() {
	c.tb.Helper()
	c.ends.Store(true)
	<-c.done
	stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil || stats.Drops != 0 {
		c.tb.Errorf("the capture of %s lost %d of %d frames: %v", ifName, stats.Drops, stats.Packets, err)
	}
	_ = unix.Close(c.fd)
}

// Offsets in TCP headers, and its flags (RFC 9293, 3168).
const (
	tcpSeqAt, tcpOffsetAt, tcpFlagsAt, tcpWindowAt, tcpSumAt, tcpUrgentAt = 4, 12, 13, 14, 16, 18
	tcpFIN, tcpRST, tcpPSH, tcpURG, tcpCWR                                = 0x01, 0x04, 0x08, 0x20, 0x80
)

// segmentsAt is the offset of the first segment, the final destination, in a packet with a segment
// routing header (RFC 8754).
const segmentsAt = ip6Len + 8

// cut returns the packets that a frame stands for, with their checksums. It is simple: every
// field and every sum of each packet is computed from the beginning.
func (f offloaded) cut() (packets [][]byte, err error) {
	ip := f.frame[etherLen:]
	size := int(binary.NativeEndian.Uint16(f.header[4:]))
	needsSum := f.header[0]&virtioNeedsCsum != 0
	start := int(binary.NativeEndian.Uint16(f.header[6:])) - etherLen
	at := start + int(binary.NativeEndian.Uint16(f.header[8:]))
	total := packetLen(ip)
	if total > len(ip) {
		return nil, fmt.Errorf("a packet of %d bytes in a frame with %d", total, len(ip))
	}
	ip = slices.Clone(ip[:total])
	switch kind := f.header[1] &^ unix.VIRTIO_NET_HDR_GSO_ECN; {
	case kind == unix.VIRTIO_NET_HDR_GSO_NONE && needsSum:
		// The field holds the sum of the pseudo-header. The checksum may be that of a packet in
		// a tunnel. Zero is written as for UDP (skb_checksum_help, net/core/dev.c).
		sum := ^fold(sum16(ip[start:]))
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(ip[at:], sum)
		return [][]byte{ip}, nil
	case kind == unix.VIRTIO_NET_HDR_GSO_NONE:
		return [][]byte{ip}, nil
	case !needsSum || size == 0:
		return nil, fmt.Errorf("segmentation without a checksum or a size: % x", f.header)
	case kind == virtioUDP:
		return cutAt(ip, start, at, start+udpLen, size), nil
	default:
		return cutAt(ip, start, at, start+int(ip[start+tcpOffsetAt]>>4)*4, size), nil
	}
}

// packetLen returns the length that an IP header states.
func packetLen(ip []byte) int {
	if ip[0]>>4 == 4 {
		return int(binary.BigEndian.Uint16(ip[2:]))
	}
	return ip6Len + int(binary.BigEndian.Uint16(ip[4:]))
}

// cutAt cuts a packet whose transport header starts at start, with a checksum at sum, and ends at
// body.
func cutAt(ip []byte, start, sum, body, size int) (packets [][]byte) {
	tcp := body > start+udpLen
	seq, urgent := uint32(0), 0
	if tcp {
		seq = binary.BigEndian.Uint32(ip[start+tcpSeqAt:])
		urgent = int(binary.BigEndian.Uint16(ip[start+tcpUrgentAt:]))
	}
	payload := ip[body:]
	for i := 0; i*size < len(payload) || i == 0; i++ {
		from, to := i*size, min((i+1)*size, len(payload))
		p := append(slices.Clone(ip[:body]), payload[from:to]...)
		if p[0]>>4 == 4 {
			binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
			binary.BigEndian.PutUint16(p[4:], binary.BigEndian.Uint16(ip[4:])+uint16(i))
			binary.BigEndian.PutUint16(p[ip4SumAt:], 0)
			binary.BigEndian.PutUint16(p[ip4SumAt:], ^fold(sum16(p[:p[0]&15*4])))
		} else {
			binary.BigEndian.PutUint16(p[4:], uint16(len(p)-ip6Len))
		}
		if tcp {
			flags := &p[start+tcpFlagsAt]
			binary.BigEndian.PutUint32(p[start+tcpSeqAt:], seq+uint32(from))
			if to < len(payload) {
				*flags &^= tcpFIN | tcpPSH
			}
			if i > 0 {
				*flags &^= tcpCWR
			}
			if left := urgent - from; *flags&tcpURG != 0 && left <= 0 {
				*flags &^= tcpURG
				binary.BigEndian.PutUint16(p[start+tcpUrgentAt:], 0)
			} else if *flags&tcpURG != 0 {
				binary.BigEndian.PutUint16(p[start+tcpUrgentAt:], uint16(left))
			}
		} else {
			binary.BigEndian.PutUint16(p[start+4:], uint16(len(p)-start))
		}
		fillSum(p, start, sum)
		packets = append(packets, p)
	}
	return packets
}

// fillSum writes the checksum of a transport header that starts at start.
func fillSum(ip []byte, start, at int) {
	binary.BigEndian.PutUint16(ip[at:], 0)
	sum := ^transportSum(ip, start)
	if sum == 0 && at == start+udpSumAt {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(ip[at:], sum)
}

// transportSum adds up a transport header, its payload and the pseudo-header: 0xffff if the
// checksum is right.
func transportSum(ip []byte, start int) uint16 {
	addrs, protocol := ip[8:ip6Len], uint32(ip[6])
	if protocol == unix.IPPROTO_ROUTING {
		addrs = slices.Concat(ip[8:24], ip[segmentsAt:][:net.IPv6len])
	}
	if ip[0]>>4 == 4 {
		addrs, protocol = ip[12:ip4Len], uint32(ip[9])
	} else if start > ip6Len {
		protocol = uint32(ip[ip6Len]) // behind one extension header
	}
	return fold(sum16(addrs) + protocol + uint32(len(ip)-start) + sum16(ip[start:]))
}

// conversation is what packets that must stay in order have in common.
type conversation struct {
	src, dst netip.Addr
	protocol byte
	ports    uint32 // 0: a fragment, or a protocol without ports
}

// conversationOf returns false for packets of the kernel itself, which the daemon may translate or answer.
func conversationOf(ip []byte) (s conversation, start int, ok bool) {
	switch {
	case len(ip) > ip4Len && ip[0]>>4 == 4:
		s.src, s.dst, s.protocol = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[9]
		start = int(ip[0]&15) * 4
		if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			start = 0
		}
	case len(ip) > ip6Len && ip[0]>>4 == 6:
		s.src, s.dst, s.protocol = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[6]
		start = ip6Len
		if s.protocol == unix.IPPROTO_ROUTING {
			s.dst = netip.AddrFrom16([16]byte(ip[segmentsAt:]))
		}
		if s.protocol == unix.IPPROTO_DSTOPTS || s.protocol == unix.IPPROTO_ROUTING {
			start += 8 * (1 + int(ip[ip6Len+1]))
			s.protocol = ip[ip6Len]
		}
	default:
		return s, 0, false
	}
	if s.protocol != unix.IPPROTO_TCP && s.protocol != unix.IPPROTO_UDP {
		start = 0
	}
	if start > 0 {
		s.ports = binary.BigEndian.Uint32(ip[start:])
	}
	return s, start, s.dst.IsGlobalUnicast() && s.protocol != unix.IPPROTO_ICMPV6
}

// sorted returns packets by their conversation, in order.
func sorted(packets [][]byte) map[conversation][][]byte {
	out := map[conversation][][]byte{}
	for _, p := range packets {
		if s, _, ok := conversationOf(p); ok {
			out[s] = append(out[s], p)
		}
	}
	return out
}

// cutAll cuts frames.
func cutAll(tb testing.TB, frames []offloaded) (packets [][]byte, large int) {
	tb.Helper()
	for _, f := range frames {
		if etherType := binary.BigEndian.Uint16(f.frame[12:]); etherType != etherIPv4 && etherType != etherIPv6 {
			continue
		}
		list, err := f.cut()
		if err != nil {
			tb.Errorf("%v: % x", err, f.frame[:64])
			continue
		}
		if len(list) > 1 {
			large++
		}
		packets = append(packets, list...)
	}
	return packets, large
}

// withoutID returns a packet whose IPv4 identification is 0 if it has no meaning (RFC 6864): the
// daemon may join packets of any identification then.
func withoutID(ip []byte) []byte {
	if ip[0]>>4 != 4 || ip[6]&0x40 == 0 {
		return ip
	}
	p := slices.Clone(ip)
	binary.BigEndian.PutUint16(p[4:], 0)
	binary.BigEndian.PutUint16(p[ip4SumAt:], 0)
	binary.BigEndian.PutUint16(p[ip4SumAt:], ^fold(sum16(p[:p[0]&15*4])))
	return p
}

// requireSums checks the checksums of a packet.
func requireSums(ip []byte) error {
	if ip[0]>>4 == 4 {
		if sum := fold(sum16(ip[:ip[0]&15*4])); sum != 0xffff {
			return fmt.Errorf("IPv4 header adds up to %#x", sum)
		}
	}
	s, start, _ := conversationOf(ip)
	if start == 0 || s.protocol == unix.IPPROTO_UDP && binary.BigEndian.Uint16(ip[start+udpSumAt:]) == 0 && ip[0]>>4 == 4 {
		return nil // neither TCP nor UDP, a fragment, or UDP without checksum
	}
	if sum := transportSum(ip, start); sum != 0xffff {
		return fmt.Errorf("protocol %d adds up to %#x", s.protocol, sum)
	}
	return nil
}
