//! JSON schemas by short names, for `openapi.rs`.

use serde_json::Value;
use utoipa::Number;
use utoipa::openapi::schema::{AnyOfBuilder, SchemaType};
use utoipa::openapi::{Array, ArrayBuilder, Object, ObjectBuilder, Ref, RefOr, Schema, Type};

/// A schema, or the name of one.
pub type SchemaRef = RefOr<Schema>;

/// A name of a field and what it takes.
pub type Field = (&'static str, SchemaRef);

/// A schema of the components.
pub fn reference(name: &str) -> SchemaRef {
    Ref::from_schema_name(name).into()
}

pub fn any_of<const N: usize>(schemas: [SchemaRef; N]) -> SchemaRef {
    let add = |any: AnyOfBuilder, schema| any.item(schema);
    schemas.into_iter().fold(AnyOfBuilder::new(), add).into()
}

/// One of these values, of any type.
pub fn enumeration<const N: usize>(values: [impl Into<Value>; N]) -> SchemaRef {
    ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .enum_values(Some(values))
        .into()
}

pub fn constant(value: impl Into<Value>) -> SchemaRef {
    enumeration([value])
}

pub fn typed(kind: impl Into<SchemaType>) -> SchemaRef {
    Object::with_type(kind).into()
}

pub fn string() -> SchemaRef {
    typed(Type::String)
}

pub fn non_empty_string() -> SchemaRef {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .into()
}

pub fn string_or_object() -> SchemaRef {
    typed(SchemaType::from_iter([Type::String, Type::Object]))
}

pub fn boolean() -> SchemaRef {
    typed(Type::Boolean)
}

pub fn number(low: f64, high: f64) -> SchemaRef {
    bounded(Type::Number, low, high)
}

pub fn whole(low: u64, high: u64) -> SchemaRef {
    bounded(Type::Integer, low, high)
}

pub fn bounded(kind: Type, low: impl Into<Number>, high: impl Into<Number>) -> SchemaRef {
    ObjectBuilder::new()
        .schema_type(kind)
        .minimum(Some(low))
        .maximum(Some(high))
        .into()
}

/// An unsigned number of 32 bits.
pub fn natural() -> SchemaRef {
    whole(0, u32::MAX.into())
}

pub fn list(items: SchemaRef) -> SchemaRef {
    Array::new(items).into()
}

pub fn list_up_to(count: usize, items: SchemaRef) -> SchemaRef {
    ArrayBuilder::new()
        .items(items)
        .max_items(Some(count))
        .into()
}

/// An object with at least these fields.
pub fn object(required: &[&str]) -> SchemaRef {
    object_of(required, [])
}

/// An object that has all of these fields.
pub fn object_with<const N: usize>(fields: [Field; N]) -> SchemaRef {
    let required = fields.each_ref().map(|(name, _)| *name);
    object_of(&required, fields)
}

/// An object with these fields, of which some must be there.
pub fn object_of(required: &[&str], fields: impl IntoIterator<Item = Field>) -> SchemaRef {
    let object = required
        .iter()
        .fold(ObjectBuilder::new(), |object, name| object.required(*name));
    let add = |object: ObjectBuilder, (name, schema)| object.property(name, schema);
    fields.into_iter().fold(object, add).into()
}

/// What a schema allows, or null.
pub fn or_null(mut schema: SchemaRef) -> SchemaRef {
    let kind = match &mut schema {
        RefOr::T(Schema::Object(object)) => &mut object.schema_type,
        RefOr::T(Schema::Array(array)) => &mut array.schema_type,
        _ => &mut SchemaType::AnyValue,
    };
    match kind {
        SchemaType::Type(one) => *kind = SchemaType::from_iter([one.clone(), Type::Null]),
        SchemaType::Array(kinds) => kinds.push(Type::Null),
        SchemaType::AnyValue => return any_of([schema, typed(Type::Null)]),
    }
    schema
}
