package sa

import (
	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// subnet is a naive subnet manager with the records that concern one port.
type subnet struct {
	lid     uint16
	capable bool // of send-only full members
	groups  map[hca.GID]mad.MCMember
	members map[hca.GID]mad.JoinState // of the port
	hosts   map[hca.GID]uint16
	refuse  mad.Status // of the next refusals
	refuses int
	broken  func(data []byte) // changes the data of answers
}

func newSubnet() *subnet {
	s := &subnet{lid: 1, capable: true, hosts: make(map[hca.GID]uint16)}
	s.restart()
	for _, pkey := range []hca.PKey{0xffff, 0x8001} {
		s.create(allOf(pkey), mad.MCMember{
			QKey: 0x0b1b, PKey: pkey, MTU: exactly(mad.MTUCode(4)), Rate: exactly(mad.Rate(3)),
		})
	}
	return s
}

func exactly[T ~uint8](v T) mad.Selected[T] { return mad.Selected[T]{By: mad.SelectExactly, Value: v} }

// restart forgets the members, and all groups but the broadcast groups.
func (s *subnet) restart() {
	s.members = make(map[hca.GID]mad.JoinState)
	groups := make(map[hca.GID]mad.MCMember)
	for g, rec := range s.groups {
		if g == broadcastOf(g) {
			groups[g] = rec
		}
	}
	s.groups = groups
}

func (s *subnet) create(g hca.GID, rec mad.MCMember) mad.MCMember {
	rec.MGID, rec.MLID, rec.Scope = g, 0xc000, 2
	for _, other := range s.groups {
		rec.MLID = max(rec.MLID, other.MLID+1)
	}
	s.groups[g] = rec
	return rec
}

// answer serves a request and returns the answer.
func (s *subnet) answer(request []byte) []byte {
	var h mad.SA
	if err := h.Parse(request); err != nil {
		panic(err)
	}
	out := make([]byte, mad.Len)
	copy(out, request)
	data := out[mad.DataOffset:]
	if s.refuses > 0 {
		s.refuses--
		h.Status = s.refuse
	} else {
		h.Status = s.serve(h, data)
	}
	if h.Status == mad.StatusOK && s.broken != nil {
		s.broken(data)
	}
	h.Method = h.Method.Response()
	h.Put(out)
	return out
}

func (s *subnet) serve(h mad.SA, data []byte) mad.Status {
	switch h.Attribute {
	case mad.AttrMCMemberRecord:
		var rec mad.MCMember
		_ = rec.Parse(data)
		if h.Method == mad.MethodDelete {
			return s.remove(rec)
		}
		return s.join(h.Mask, rec, data)
	case mad.AttrClassPortInfo:
		info := mad.ClassPortInfo{BaseVersion: 1, ClassVersion: 2, RespTime: 16}
		if s.capable {
			info.Capability2 = mad.CapSendOnlyFull
		}
		info.Put(data)
		return mad.StatusOK
	case mad.AttrPathRecord:
		var rec mad.Path
		_ = rec.Parse(data)
		lid, ok := s.hosts[rec.DGID]
		if !ok {
			return mad.StatusNoRecords
		}
		rec.DLID, rec.SLID, rec.MTU, rec.Rate, rec.Reversible = lid, 5, exactly(mad.MTUCode(4)), exactly(mad.Rate(3)), true
		rec.Put(data)
		return mad.StatusOK
	}
	return mad.StatusBadMethodWithAttr
}

// join requires what the masks of Linux name, and compares the parameters with the broadcast group's, as OpenSM does.
func (s *subnet) join(mask mad.Mask, want mad.MCMember, data []byte) mad.Status {
	rec, ok := s.groups[want.MGID]
	b := s.groups[broadcastOf(want.MGID)]
	switch {
	case !ok && mask != mad.MaskJoin:
		return mad.StatusInsufficientComponents
	case !ok && want.JoinState == mad.JoinSendOnly,
		mask == mad.MaskJoin && (want.MTU != b.MTU || want.Rate != b.Rate || want.QKey != b.QKey):
		return mad.StatusRequestInvalid
	case !ok:
		rec = s.create(want.MGID, want)
	}
	s.members[want.MGID] |= want.JoinState
	rec.PortGID, rec.JoinState = want.PortGID, s.members[want.MGID]
	rec.Put(data)
	return mad.StatusOK
}

func (s *subnet) remove(rec mad.MCMember) mad.Status {
	if s.members[rec.MGID]&rec.JoinState == 0 {
		return mad.StatusRequestInvalid
	}
	if s.members[rec.MGID] &^= rec.JoinState; s.members[rec.MGID] == 0 {
		delete(s.members, rec.MGID)
		if rec.MGID != broadcastOf(rec.MGID) {
			delete(s.groups, rec.MGID)
		}
	}
	return mad.StatusOK
}
