// Package satest has a naive subnet administrator of a [memsubnet.Subnet]: a test double of OpenSM's. It knows the ports
// and the partitions that a test adds, answers joins and queries for paths, and keeps the subnet's table of memberships.
// It requires of requests what OpenSM requires of Linux's.
package satest

import (
	"maps"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/hca/soft/memsubnet"
	"ipoibd/ud/ipoib"
)

// respTime is OpenSM's RespTimeValue: 268 ms.
const respTime mad.TimeCode = 16

// SA is a subnet administrator. Any goroutine may call its methods.
type SA struct {
	mu      sync.Mutex // guards what follows
	subnet  *memsubnet.Subnet
	groups  map[hca.GID]mad.MCMember
	members map[hca.GID]map[uint16]mad.JoinState // by LID
	lids    map[hca.GID]uint16
	next    uint16 // MLID
	asked   map[Request]int
}

// Request counts requests of one kind.
type Request struct {
	Method mad.Method
	About  hca.GID // MGID or DGID; zero for ClassPortInfo
}

// New returns an SA without ports and partitions.
func New() *SA {
	a := &SA{lids: map[hca.GID]uint16{}, asked: map[Request]int{}}
	a.forget()
	return a
}

func (a *SA) forget() {
	a.groups, a.members, a.next = map[hca.GID]mad.MCMember{}, map[hca.GID]map[uint16]mad.JoinState{}, 0xc000
}

// Serve makes a the administrator of a subnet, whose SM has a as its SA.
func (a *SA) Serve(s *memsubnet.Subnet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subnet = s
}

// SetPort adds a port, or changes its LID.
func (a *SA) SetPort(gid hca.GID, lid uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lids[gid] = lid
}

// SetPartition gives a partition its broadcast group, as OpenSM's flag ipoib does.
func (a *SA) SetPartition(key hca.PKey, mtu hca.MTU, qkey hca.QKey, sl uint8) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.create(ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, key), mad.MCMember{
		QKey: qkey, PKey: key | hca.PKeyMembership, SL: sl, Scope: ipoib.ScopeLinkLocal,
		MTU:  mad.Selected[mad.MTUCode]{By: mad.SelectExactly, Value: mad.MTUCodeOf(mtu)},
		Rate: mad.Selected[mad.Rate]{By: mad.SelectExactly, Value: 3}, // 10 Gbit/s
	})
}

func (a *SA) create(mgid hca.GID, rec mad.MCMember) mad.MCMember {
	rec.MGID, rec.MLID = mgid, a.next
	a.next++
	a.groups[mgid] = rec
	a.members[mgid] = map[uint16]mad.JoinState{}
	return rec
}

// Restart forgets all memberships, and gives the broadcast groups other MLIDs, as a subnet manager does that begins with
// an empty cache. The ports keep their LIDs.
func (a *SA) Restart() {
	a.mu.Lock()
	defer a.mu.Unlock()
	groups, members := a.groups, a.members
	for mgid, list := range members {
		for lid := range list {
			a.subnet.Leave(lid, mgid, groups[mgid].MLID)
		}
	}
	next := a.next
	a.forget()
	a.next = next
	for mgid, rec := range groups {
		if isBroadcast(mgid) {
			a.create(mgid, rec)
		}
	}
}

// Members returns the LIDs of the full members of a group.
func (a *SA) Members(mgid hca.GID) (lids []uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for lid, state := range a.members[mgid] {
		if state&mad.JoinFull != 0 {
			lids = append(lids, lid)
		}
	}
	slices.Sort(lids)
	return lids
}

// Asked returns how many requests have arrived, by kind.
func (a *SA) Asked() map[Request]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.asked)
}

// Answer implements [memsubnet.SA].
func (a *SA) Answer(from uint16, _ hca.GID, request []byte) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	var h mad.SA
	if h.Parse(request) != nil {
		return nil
	}
	out := slices.Clone(request)
	h.Status = a.serve(from, h, out[mad.DataOffset:])
	h.Method = h.Method.Response()
	h.Put(out)
	return [][]byte{out}
}

func (a *SA) serve(from uint16, h mad.SA, data []byte) mad.Status {
	switch h.Attribute {
	case mad.AttrClassPortInfo:
		a.asked[Request{Method: h.Method}]++
		info := mad.ClassPortInfo{BaseVersion: 1, ClassVersion: 2, RespTime: respTime, Capability2: mad.CapSendOnlyFull}
		info.Put(data)
		return mad.StatusOK
	case mad.AttrMCMemberRecord:
		var rec mad.MCMember
		_ = rec.Parse(data) // the form of all records is correct
		a.asked[Request{h.Method, rec.MGID}]++
		if h.Method == mad.MethodDelete {
			return a.leave(from, rec)
		}
		return a.join(from, h.Mask, rec, data)
	case mad.AttrPathRecord:
		var rec mad.Path
		_ = rec.Parse(data)
		a.asked[Request{h.Method, rec.DGID}]++
		return a.path(from, rec, data)
	}
	return mad.StatusBadMethodWithAttr
}

// join compares the parameters of a group with those of the broadcast group, as OpenSM does.
func (a *SA) join(from uint16, mask mad.Mask, want mad.MCMember, data []byte) mad.Status {
	rec, ok := a.groups[want.MGID]
	broadcast := a.groups[ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, want.PKey)]
	switch {
	case !ok && mask != mad.MaskJoin:
		return mad.StatusInsufficientComponents
	case !ok && want.JoinState == mad.JoinSendOnly,
		mask == mad.MaskJoin && (want.MTU != broadcast.MTU || want.Rate != broadcast.Rate || want.QKey != broadcast.QKey):
		return mad.StatusRequestInvalid
	case !ok:
		rec = a.create(want.MGID, want)
	}
	a.members[want.MGID][from] |= want.JoinState
	rec.PortGID, rec.JoinState = want.PortGID, a.members[want.MGID][from]
	rec.Put(data)
	a.subnet.Join(from, want.MGID, rec.MLID, rec.JoinState&mad.JoinFull == 0)
	return mad.StatusOK
}

func (a *SA) leave(from uint16, rec mad.MCMember) mad.Status {
	members := a.members[rec.MGID]
	if members[from]&rec.JoinState == 0 {
		return mad.StatusRequestInvalid
	}
	if members[from] &^= rec.JoinState; members[from] == 0 {
		delete(members, from)
	}
	a.subnet.Leave(from, rec.MGID, a.groups[rec.MGID].MLID)
	if len(members) == 0 && !isBroadcast(rec.MGID) {
		delete(a.groups, rec.MGID)
	}
	return mad.StatusOK
}

func (a *SA) path(from uint16, rec mad.Path, data []byte) mad.Status {
	lid, ok := a.lids[rec.DGID]
	if !ok {
		return mad.StatusNoRecords
	}
	b := a.groups[ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, rec.PKey)]
	rec.DLID, rec.SLID, rec.SL, rec.MTU, rec.Rate, rec.Reversible = lid, from, b.SL, b.MTU, b.Rate, true
	rec.Put(data)
	return mad.StatusOK
}

func isBroadcast(mgid hca.GID) bool {
	return mgid == ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, hca.PKey(mgid[4])<<8|hca.PKey(mgid[5]))
}
