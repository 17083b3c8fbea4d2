package neigh

import (
	"bytes"
	"maps"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// lids are the paths to the GIDs of an InfiniBand subnet, and the claims that wait for them. On RoCE there are none.
//
// The device of a sender sets the LID and the QPN of a message. The GID that the message names as its sender's, in a
// 20-byte address or, if it has none and no peer is known at the LID and QPN, in a GRH, is only a claim until the path
// to that GID leads to that LID:
//
//	the path to the GID  | what happens to the claim
//	leads to the LID     | it is accepted
//	unknown              | FindPath; it waits for the answer
//	leads elsewhere      | the same, since the subnet manager may have changed the LID; within pathPause of the
//	                     | last answer: foreign_lid
//	was not found        | the same; within pathPause of that: no_path
//	is being found       | it waits for the answer, unless the path known so far leads to the LID
//
// Claims that wait for a path are judged by the answer, in their order.
type lids struct {
	step *step
	host *host

	paths   map[hca.GID]*path
	claims  int             // that wait, at most maxClaims
	waiting map[hca.LID]int // those of each LID, at most maxClaimsPerLID
	finds   map[hca.LID]int // requests that claims of each LID have caused in this second, at most maxFindRate
	second  time.Time       // its end
}

// path is the path to the port with a GID. The table has it while that port has peers, and for a while afterwards.
type path struct {
	hca.UDPath           // the last that was found; zero: none
	lid        hca.LID   // its destination, without path bits; 0: none
	asked      bool      // a FindPath is not answered yet
	at         time.Time // of the last answer
	claims     []claim   // that wait for the answer, in order
}

// claim is a message that waits until it is known whether it comes from e.
type claim struct {
	e         endpoint // claimed; its QPN is the sender's
	lid       hca.LID  // of the sender
	msg       []byte
	multicast bool
}

func newLIDs(s *step, h *host) lids {
	return lids{
		step: s, host: h,
		paths: make(map[hca.GID]*path), waiting: make(map[hca.LID]int), finds: make(map[hca.LID]int),
	}
}

// named returns the endpoint in the 20-byte address of its sender that a message contains: ARP, RARP and most of ND.
// It is zero if there is none. The flags of the address are ignored: peers in connected mode set them (RFC 4755
// section 3.1).
func named(typ ipoib.EtherType, body []byte) endpoint {
	switch {
	case typ == ipoib.EtherTypeARP || typ == ipoib.EtherTypeRARP:
		if arp, err := ipoib.ParseARP(body); err == nil {
			return endpointOf(arp.SHA)
		}
	case typ == ipoib.EtherTypeIPv6 && ipoib.IsND(body):
		nd, err := ipoib.ParseND(body, ipoib.FormIPoIB)
		if link, ok := nd.Link.IPoIB(); err == nil && ok && nd.Type != ipoib.NDRedirect {
			return endpointOf(link)
		}
	}
	return endpoint{}
}

// prove reports whether a claim is true. If that is unknown, it keeps the claim until it is known. It drops one that is
// false or cannot be kept.
func (s *lids) prove(c claim) bool {
	p := s.paths[c.e.gid]
	switch {
	case p != nil && p.lid == c.lid:
		return true
	case p != nil && !p.asked && s.step.now.Before(p.at.Add(pathPause)):
		s.step.drop(p.refusal())
		return false
	case !s.room(c) || p == nil && len(s.paths) >= maxPaths || (p == nil || !p.asked) && !s.allowFind(c.lid):
		s.step.drop(DropClaimsFull)
		return false
	}
	s.keep(s.find(c.e.gid), c)
	return false
}

// room reports whether another claim may wait.
func (s *lids) room(c claim) bool {
	return len(c.msg) <= maxClaimBytes && s.claims < maxClaims && s.waiting[c.lid] < maxClaimsPerLID &&
		s.step.stats.KeptBytes+len(c.msg) <= maxSoughtBytes
}

// keep keeps a claim until the answer for a path, and a copy of its message.
func (s *lids) keep(p *path, c claim) {
	c.msg = bytes.Clone(c.msg)
	p.claims = append(p.claims, c)
	s.claims++
	s.waiting[c.lid]++
	s.step.stats.Kept++
	s.step.stats.KeptBytes += len(c.msg)
}

// refusal returns why a claim is refused that the path does not prove.
func (p *path) refusal() Reason {
	if p.lid == 0 {
		return DropNoPath
	}
	return DropForeignLID
}

// allowFind reports whether a claim of a LID may cause another request, and counts it if so.
func (s *lids) allowFind(lid hca.LID) bool {
	if !s.step.now.Before(s.second) {
		clear(s.finds)
		s.second = s.step.now.Add(time.Second)
	}
	if s.finds[lid] >= maxFindRate {
		return false
	}
	s.finds[lid]++
	return true
}

// find requests the path to a GID, unless it was requested already.
func (s *lids) find(gid hca.GID) *path {
	p := s.paths[gid]
	if p == nil {
		p = &path{}
		s.paths[gid] = p
	}
	if !p.asked {
		p.asked = true
		s.step.stats.PathsAsked++
		s.step.emit(FindPath{GID: gid, Again: p.lid != 0})
	}
	return p
}

// renew requests the path to a GID again, whose peer is silent, unless the last answer is recent.
func (s *lids) renew(gid hca.GID) {
	if p := s.paths[gid]; p == nil || s.step.now.Sub(p.at) >= renewPause {
		s.find(gid)
	}
}

// to returns the path to a GID, or false if it is unknown. On RoCE there is nothing to know.
func (s *lids) to(gid hca.GID) (hca.UDPath, bool) {
	if p := s.paths[gid]; p != nil && p.lid != 0 {
		return p.UDPath, true
	}
	return hca.UDPath{}, s.host.link.lid == 0
}

// of returns the LID of a GID, or 0 if it is unknown.
func (s *lids) of(gid hca.GID) hca.LID {
	if p := s.paths[gid]; p != nil {
		return p.lid
	}
	return 0
}

// answered stores the answer to a FindPath, the zero UDPath if there is no path, and returns the claims that have
// waited for it. If none was found, the last path stays. The answer for a GID whose path the table has forgotten is
// ignored.
func (s *lids) answered(gid hca.GID, found hca.UDPath) (p *path, claims []claim) {
	p = s.paths[gid]
	if p == nil {
		return nil, nil
	}
	if lid := found.DLID.Base(s.host.link.lmc); found.DLID.IsUnicast() && lid != 0 {
		p.UDPath, p.lid = found, lid
	} else {
		s.step.stats.PathFailed++
	}
	p.asked, p.at = false, s.step.now
	return p, s.take(p)
}

// take returns the claims that wait for a path.
func (s *lids) take(p *path) []claim {
	claims := p.claims
	p.claims = nil
	s.claims -= len(claims)
	for _, c := range claims {
		if s.waiting[c.lid]--; s.waiting[c.lid] == 0 {
			delete(s.waiting, c.lid)
		}
		s.step.stats.Kept--
		s.step.stats.KeptBytes -= len(c.msg)
	}
	return claims
}

// detach drops the claims. What was requested may never be answered; the paths themselves stay.
func (s *lids) detach() {
	for _, p := range s.paths {
		s.step.stats.Drops[DropDetached] += uint64(len(s.take(p)))
		p.asked = false
	}
}

// forget forgets the paths, but not that some were requested.
func (s *lids) forget() {
	for gid, p := range s.paths {
		s.step.stats.Drops[DropDetached] += uint64(len(s.take(p)))
		if p.UDPath, p.lid = (hca.UDPath{}), 0; !p.asked {
			delete(s.paths, gid)
		}
	}
}

// sweep removes the paths to ports without a peer, once their last answers are pathPause old.
func (s *lids) sweep(peers map[hca.GID][]*peer) {
	maps.DeleteFunc(s.paths, func(gid hca.GID, p *path) bool {
		return !p.asked && len(peers[gid]) == 0 && s.step.now.Sub(p.at) >= pathPause
	})
}

// fromSubnet handles a message from the fabric on an InfiniBand port.
func (t *Table) fromSubnet(ev FromFabric, typ ipoib.EtherType, body []byte) {
	from, e := ev.From, named(typ, body)
	if e.gid.IsZero() {
		e = endpoint{from.GID, from.QPN}
		if p := t.peers.live.byLID[from.Key()]; p != nil {
			e = p.endpoint
		}
	}
	switch {
	case !from.LID.IsUnicast() || from.QPN <= hca.QPNGSI || from.QPN >= hca.QPNMulticast:
		t.step.drop(DropBadSource)
	case t.host.link.isOwnLID(from, t.step.now):
		t.step.drop(DropOwn)
	case e.gid.IsZero():
		t.step.drop(DropUnknownLID)
	case e.qpn != from.QPN:
		t.step.drop(DropForged)
	case !e.valid():
		t.step.drop(DropBadSource)
	case t.host.link.isOwn(e, t.step.now):
		t.step.drop(DropForeignLID)
	case t.lids.prove(claim{e, from.LID, ev.Msg, ev.Multicast}):
		t.proven(e, typ, body, ev.Multicast)
	}
}

// proven accepts a message from e, which is the peer at its LID from now on.
func (t *Table) proven(e endpoint, typ ipoib.EtherType, body []byte, multicast bool) {
	t.accept(e, typ, body, multicast)
	if p := t.peers.live.byEndpoint[e]; p != nil {
		t.peers.place(p)
	}
}

// pathAnswered takes the answer to a FindPath; the zero UDPath is no path.
func (t *Table) pathAnswered(gid hca.GID, found hca.UDPath) {
	p, claims := t.lids.answered(gid, found)
	if p == nil {
		return
	}
	for _, peer := range t.peers.live.byGID[gid] {
		if p.UDPath == found {
			t.peers.place(peer)
		}
		t.handles.pathAnswered(peer)
	}
	for _, c := range claims {
		if p.lid != c.lid {
			t.step.drop(p.refusal())
			continue
		}
		typ, body, _ := ipoib.ParseHeader(c.msg)
		t.proven(c.e, typ, body, c.multicast)
	}
}
