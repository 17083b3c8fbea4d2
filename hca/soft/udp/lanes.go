package udp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
)

// OpenLanes opens a transport for each of cfg.Lanes lanes, or a single one if that is not
// possible; its [Transport.LanesRefused] then returns the reason. All are on the same netdev. The
// first one receives all multicast, and only it joins groups. Errors: as Open.
func OpenLanes(cfg Config) (lanes []*Transport, err error) {
	if cfg.Reserve == nil {
		cfg.Reserve = new(Reserve)
		defer cfg.Reserve.Close()
	}
	first, err := openFirst(cfg)
	if err != nil {
		return nil, err
	}
	lanes = append(lanes, first)
	for i := 1; i < len(first.ports.lanes); i++ {
		t := &Transport{
			sendBuf: first.sendBuf,
			ports:   first.ports,
			watch:   first.watch,
			groups:  first.groups,
			paths:   first.paths,
			fast:    first.fast,
			lane:    i,
		}
		recv, send, err := first.rx.reserve.acquireLane(first.ports, i)
		if err != nil {
			for _, t := range lanes {
				_ = t.Close()
			}
			return nil, fmt.Errorf("open lane %d of the UDP transport on %q: %w", i, cfg.Netdev, err)
		}
		t.rx = newReceiver(recv, first.rx.reserve)
		t.tx = newSender(send, first.watch.index, first.watch)
		lanes = append(lanes, t)
	}
	return lanes, nil
}

// LanesRefused returns why OpenLanes has opened only one transport instead of several, or nil.
func (t *Transport) LanesRefused() error { return t.ports.unlaned }

// openLanes opens the sockets of the lanes after the first one, whose sockets are bound already.
// The receiving sockets of all lanes form an SO_REUSEPORT group. If any of this fails, there is only
// one lane.
func (p *ports) openLanes(cfg *Config, netdev *transport.State) {
	if err := p.tryLanes(cfg, netdev); err != nil {
		errs := []error{err}
		for i := range p.lanes[1:] {
			errs = append(errs, p.lanes[1+i].close())
		}
		p.lanes = p.lanes[:1]
		alone := setOptions(p.lanes[0].recv.fd, []option{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 0}})
		p.unlaned = errors.Join(append(errs, alone)...)
	}
}

func (p *ports) tryLanes(cfg *Config, netdev *transport.State) error {
	first := p.lanes[0].recv.fd
	if err := joinLanes(first); err != nil {
		return err
	}
	for len(p.lanes) < cfg.Lanes {
		if err := p.openLane(cfg, netdev); err != nil {
			return err
		}
	}
	// The program is attached only once: to replace or detach it, a process needs a descriptor of a
	// socket of the group, which only processes of the same user can open.
	program := laneProgram(cfg.Lanes)
	return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF",
		unix.SetsockoptSockFprog(first, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}))
}

// joinLanes makes a socket a member of the group: at once if it is bound, else when it is bound.
func joinLanes(fd int) error {
	return setOptions(fd, []option{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}})
}

// refuseMulticast makes the kernel deliver no datagrams to IP multicast groups to a socket.
func refuseMulticast(fd int, ipv6 bool) error {
	options := []option{{unix.SOL_IP, unix.IP_MULTICAST_ALL, 0}}
	if ipv6 {
		options = append(options, option{unix.SOL_IPV6, unix.IPV6_MULTICAST_ALL, 0})
	}
	return setOptions(fd, options)
}

// laneSource returns the first source port to try for a lane. Modulo the number of lanes, the port
// is the number of the lane, so a peer with as many lanes receives its datagrams on the lane with
// the same number.
func laneSource(mac [6]byte, lane, lanes int) uint16 {
	first := int(sourceFor(mac))
	return uint16(first - first%lanes + lane)
}

// laneProgram returns the program that selects the lane of a datagram: its UDP source port modulo
// the number of lanes, since each sending queue of a peer has its own port. For multicast, for
// which the kernel runs the program too (early demux), it selects the first lane. The program
// starts at the payload of UDP, so it reads the port relative to the IP header. An IPv6 packet
// with extension headers has other data there, which at worst selects another lane.
func laneProgram(lanes int) []unix.SockFilter {
	const (
		network   = 0xfff00000   // SKF_NET_OFF of linux/filter.h
		ipv4Dst   = network + 16 // the first byte of the destination address
		ipv6Dst   = network + 24
		ipv4Group = 224
		ipv6Group = 0xff
		ipv6Port  = network + 40
	)
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: network}, // the version, and the length of an IPv4 header
		{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 4, Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ipv4Dst},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: ipv4Group, Jt: 8},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: network},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: network},
		{Code: unix.BPF_JMP | unix.BPF_JA, K: 3},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ipv6Dst},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: ipv6Group, Jt: 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ipv6Port},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(lanes)},
		{Code: unix.BPF_RET | unix.BPF_A},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}
