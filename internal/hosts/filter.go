package hosts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/suggest"
)

// choice is one host of --include or --exclude, and the devices named with it.
type choice struct {
	name    string
	devices []int // nil: the whole host
}

// Include keeps the hosts, in their own order, that a list such as a@b:0,2@node[1-4] names: hosts separated by @,
// each with all its devices or only those behind the colon.
func Include(pool []Host, list string) ([]Host, error) {
	return filter(pool, "--include", list, func(h Host, c *choice) (Host, bool, error) {
		if c == nil {
			return h, false, nil
		}
		if c.devices == nil {
			return h, true, nil
		}
		h.Devices, h.Slots = c.devices, len(c.devices)
		return h, true, nil
	})
}

// Exclude takes away the hosts, or devices of hosts, that such a list names.
func Exclude(pool []Host, list string) ([]Host, error) {
	return filter(pool, "--exclude", list, func(h Host, c *choice) (Host, bool, error) {
		if c == nil {
			return h, true, nil
		}
		if c.devices == nil {
			return h, false, nil
		}
		if h.Slots == 0 {
			return h, false, fmt.Errorf("--exclude: how many devices %s has is not known; give its slots", h.Name)
		}
		var left []int
		for d := range h.Slots {
			if !slices.Contains(c.devices, d) {
				left = append(left, d)
			}
		}
		h.Devices, h.Slots = left, len(left)
		return h, len(left) > 0, nil
	})
}

func filter(pool []Host, flag, list string, keep func(Host, *choice) (Host, bool, error)) ([]Host, error) {
	choices, err := parseChoices(flag, list)
	if err != nil {
		return nil, err
	}
	var kept []Host
	names := make([]string, 0, len(pool))
	for _, h := range pool {
		names = append(names, h.Name)
		c := choices[h.key()]
		delete(choices, h.key())
		if c != nil {
			for _, d := range c.devices {
				if h.Slots > 0 && d >= h.Slots {
					return nil, fmt.Errorf("%s: %s has devices 0 to %d, not %d", flag, h.Name, h.Slots-1, d)
				}
			}
		}
		h, ok, err := keep(h, c)
		if err != nil {
			return nil, err
		}
		if ok {
			kept = append(kept, h)
		}
	}
	for _, c := range choices {
		return nil, fmt.Errorf("%s: %s is not among the hosts%s", flag, c.name, suggest.DidYouMean(c.name, names))
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("%s %s leaves no host", flag, list)
	}
	return kept, nil
}

func parseChoices(flag, list string) (map[string]*choice, error) {
	choices := map[string]*choice{}
	for _, w := range splitOutside(list, '@') {
		fail := func(offset int, msg string) error {
			return &Error{flag, 0, column(list, w.offset+offset), list, msg}
		}
		name, devices, err := cutCount(w.text)
		if err != nil {
			return nil, fail(err.offset, err.msg)
		}
		found, err := parseHosts(name, MaxHosts)
		if err != nil {
			return nil, fail(err.offset, err.msg)
		}
		c := choice{}
		if devices >= 0 {
			for text := range strings.SplitSeq(w.text[devices:], ",") {
				d, err := strconv.ParseUint(text, 10, 31)
				if err != nil || d >= MaxSlots {
					return nil, fail(devices, fmt.Sprintf("%q is not a device: numbers from 0, separated by commas", text))
				}
				if slices.Contains(c.devices, int(d)) {
					return nil, fail(devices, fmt.Sprintf("device %d is named twice", d))
				}
				c.devices = append(c.devices, int(d))
			}
		}
		for _, h := range found {
			if choices[h.key()] != nil {
				return nil, fail(0, h.Name+" is named twice")
			}
			choices[h.key()] = &choice{h.Name, c.devices}
		}
	}
	return choices, nil
}
