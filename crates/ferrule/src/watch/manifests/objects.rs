//! The objects of one document, converted one by one, until its end says which of them count.
//!
//! What a document is may be written behind its items: only then is it known whether these are
//! somebody else's, and of what kind those are that leave that to their list. So what is wrong with
//! one is kept beside the others meanwhile.

use ferrule_core::issue::{Kind, ObjectKey};
use ferrule_core::track::Event;

use super::decode::{Fault, Sort};
use super::defaults;
use super::place::Place;
use super::stream::{Found, Receiver};
use crate::watch::{Unserved, api, convert};

/// The objects of one document.
pub(super) struct Objects<'a> {
    /// The document.
    place: Place,
    node_name: &'a str,
    all: Vec<(Place, State)>,
}

/// An object, or what is wrong with it.
pub(super) type Converted = Result<Object, Fault>;

/// An object that counts. There are many, and they move: hence the box.
pub(super) struct Object {
    pub(super) key: ObjectKey,
    /// None for what no node proxy is concerned with.
    pub(super) event: Option<Box<Event>>,
    /// Why node proxies leave this Service alone.
    pub(super) unserved: Option<Unserved>,
}

enum State {
    Done(Converted),
    /// Its list has not said yet what its items are.
    Untyped(Box<api::Object>),
}

impl<'a> Objects<'a> {
    /// None yet, of the document at this place.
    pub(super) fn new(place: Place, node_name: &'a str) -> Self {
        Self {
            place,
            node_name,
            all: Vec::new(),
        }
    }

    /// All that count, in order.
    pub(super) fn into_all(self) -> impl Iterator<Item = (Place, Converted)> {
        self.all.into_iter().map(|(place, state)| match state {
            State::Done(converted) => (place, converted),
            State::Untyped(_) => (place, Err(Fault::NoKind)),
        })
    }

    /// What the object is; `None` if it is of no account.
    fn convert(&self, kind: Kind, mut object: api::Object) -> Option<Converted> {
        if object.metadata.name.is_empty() {
            return Some(Err(Fault::NoName(kind.as_str())));
        }
        defaults::fill_in(kind, &mut object);
        let key = convert::key(kind, &object.metadata);
        let is_service = kind == Kind::Service;
        let unserved = is_service.then(|| Unserved::of(&object)).flatten();
        let event = convert::convert(kind, object, self.node_name).map(Box::new);
        (is_service || event.is_some()).then_some(Ok(Object {
            key,
            event,
            unserved,
        }))
    }

    /// Tells items, which begin at `first`, what kind their list is of.
    fn type_items(&mut self, first: usize, item_kind: Option<Kind>) {
        let is_untyped = |(_, state): &(Place, State)| matches!(state, State::Untyped(_));
        if !self.all[first..].iter().any(is_untyped) {
            return;
        }
        for (place, state) in self.all.split_off(first) {
            let converted = match (state, item_kind) {
                (State::Done(converted), _) => Some(converted),
                (State::Untyped(object), Some(kind)) => self.convert(kind, *object),
                (State::Untyped(_), None) => Some(Err(Fault::NoKind)),
            };
            self.push(place, converted);
        }
    }

    fn push(&mut self, place: Place, converted: Option<Converted>) {
        let state = converted.map(State::Done);
        self.all.extend(state.map(|state| (place, state)));
    }
}

impl Receiver for Objects<'_> {
    fn take(&mut self, found: Found<'_>) {
        let Found {
            at,
            head,
            list,
            object,
        } = found;
        let is_item = |place: &Place| place.items.len() > at.len() && place.items.starts_with(at);
        let others = self.all.iter().rposition(|(place, _)| !is_item(place));
        let first_item = others.map_or(0, |last| last + 1);
        let sort = if !head.is_empty() {
            head.sort()
        } else if let Ok(Sort::List {
            item_kind: Some(kind),
        }) = list.sort()
        {
            Ok(Sort::Object(kind))
        } else if at.is_empty() {
            Err(Fault::NoKind)
        } else {
            self.all.truncate(first_item);
            let state = State::Untyped(Box::new(object));
            self.all.push((self.place.at(at), state));
            return;
        };
        if let Ok(Sort::List { item_kind }) = sort {
            self.type_items(first_item, item_kind);
            return;
        }
        self.all.truncate(first_item);
        let converted = match sort {
            Ok(Sort::Object(kind)) => self.convert(kind, object),
            Ok(Sort::Foreign | Sort::List { .. }) => None,
            Err(fault) => Some(Err(fault)),
        };
        self.push(self.place.at(at), converted);
    }

    fn forget(&mut self) {
        self.all.clear();
    }
}
