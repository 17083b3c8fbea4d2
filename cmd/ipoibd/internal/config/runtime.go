package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

var errNoJSON = errors.New("the interface is not a JSON object")

// WithRuntime returns a configuration with one more interface, from a request: a JSON object with
// the fields that an interface has in a file. It replaces an earlier one of that name that was added
// at run time as well. Errors: [Mistakes], and that the text is not JSON.
func (c *Config) WithRuntime(text []byte) (*Config, error) {
	var root yaml.Node
	if !json.Valid(text) { // YAML would accept more
		return nil, errNoJSON
	}
	if err := yaml.Load(text, &root); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoJSON, err)
	}
	f, d := NewInterface(), decoder{lines: map[string]int{}}
	f.Name, f.Device, f.Request = "", "", string(text)
	mapping(&d, "", root.Content[0], InterfaceFields, &f)
	if f.Device == "" && len(c.Devices) == 1 {
		f.Device = c.Devices[0].Name
	}
	if len(d.mistakes) > 0 {
		return nil, d.mistakes
	}
	i := slices.IndexFunc(c.Interfaces, func(x Interface) bool { return x.Name == f.Name })
	next := c.withInterfaces(slices.Clone(c.Interfaces))
	switch {
	case i < 0:
		i = len(next.Interfaces)
		next.Interfaces = append(next.Interfaces, f)
	case c.Interfaces[i].Runtime():
		next.Interfaces[i] = f
	default:
		return nil, Mistakes{{
			Field: "name",
			Text:  fmt.Sprintf("the configuration has an interface %s already; choose another name", f.Name),
		}}
	}
	ms := next.mistakes()
	for _, m := range ms {
		m.Field = strings.TrimPrefix(m.Field, fmt.Sprintf("interfaces[%d].", i))
	}
	if len(ms) > 0 {
		return nil, ms
	}
	return next, nil
}

// WithRuntimeOf returns a configuration with the interfaces that were added to another one at run
// time, except those that it has itself. It returns [Mistakes] if they do not fit.
func (c *Config) WithRuntimeOf(other *Config) (*Config, error) {
	next := c.withInterfaces(slices.Clone(c.Interfaces))
	for _, f := range other.Interfaces {
		if f.Runtime() && !slices.ContainsFunc(c.Interfaces, func(x Interface) bool { return x.Name == f.Name }) {
			next.Interfaces = append(next.Interfaces, f)
		}
	}
	ms := next.mistakes()
	for _, m := range ms {
		for i, f := range next.Interfaces[len(c.Interfaces):] {
			if field, ok := strings.CutPrefix(m.Field, fmt.Sprintf("interfaces[%d]", len(c.Interfaces)+i)); ok {
				m.Field = fmt.Sprintf("interface %s (added at run time)%s", f.Name, field)
			}
		}
	}
	if len(ms) > 0 {
		return nil, ms
	}
	return next, nil
}

// Without returns a configuration without an interface that was added at run time.
func (c *Config) Without(name string) (*Config, error) {
	i := slices.IndexFunc(c.Interfaces, func(f Interface) bool { return f.Name == name })
	if i < 0 || !c.Interfaces[i].Runtime() {
		return nil, fmt.Errorf("interface %s was not added at run time", name)
	}
	return c.withInterfaces(slices.Delete(slices.Clone(c.Interfaces), i, i+1)), nil
}

// withInterfaces returns a copy of c that has other interfaces.
func (c *Config) withInterfaces(interfaces []Interface) *Config {
	next := *c
	next.Interfaces = interfaces
	return &next
}
