//! Rewrites a parsed template so that every value is charged to the budget, and operators have Python's
//! semantics.
//!
//! Every operation whose result can be larger than its operands goes through a function of
//! [`environment`](super::environment) that counts it, and literal text is written like a value, so that
//! it is counted too. What a chat template has no use for (other templates, blocks) is refused.

use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};
use minijinja::machinery::{Span, Token, tokenize};
use minijinja::{Error, ErrorKind, Value};

/// `left + right`.
pub(super) const SUM: &str = "__sum";
/// Counts a list or map that was written out.
pub(super) const CONTAINER: &str = "__container";
/// Counts the work of finding an element of a value.
pub(super) const LOOKED_UP: &str = "__looked_up";
/// Counts a sequence whose elements become arguments: `f(*value)`.
pub(super) const SPREAD: &str = "__spread";
/// Counts the work of comparing a value.
pub(super) const COMPARED: &str = "__compared";
/// `left ~ right`.
pub(super) const CONCAT: &str = "__concat";
/// `value[start:stop:step]`.
pub(super) const SLICE: &str = "__slice";
/// `left * right`.
pub(super) const MULTIPLY: &str = "__multiply";
/// Refuses to iterate over none: `for x in value`.
pub(super) const ITERATED: &str = "__iterated";
/// `left < right` and kin.
pub(super) const LESS: &str = "__less";
pub(super) const LESS_EQUAL: &str = "__less_equal";
pub(super) const GREATER: &str = "__greater";
pub(super) const GREATER_EQUAL: &str = "__greater_equal";
/// `left in right`.
pub(super) const IN: &str = "__in";
/// `left % right`.
pub(super) const REMAINDER: &str = "__remainder";

/// Most tokens of one `{{ … }}` or `{% … %}`; it bounds how deep an expression nests.
const TAG_TOKENS_MAX: usize = 2048;
/// Most branches; each nests in the one before it.
const ELIFS_MAX: usize = 500;

type Result<T> = std::result::Result<T, Error>;

/// `{% generation %}` marks what an assistant said, for training: here it only makes a scope.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let (before, tag) = rest.split_at(begin);
        out.push_str(before);
        let Some(end) = tag.find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let (tag, behind) = tag.split_at(end);
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']);
        match inner.trim() {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Refuses source on which the parser itself would recurse too deep.
pub(super) fn check_size(source: &str, syntax: minijinja::syntax::SyntaxConfig) -> Result<()> {
    let (mut in_tag, mut elifs) = (0, 0);
    for token in tokenize(source, false, syntax) {
        let (token, span) = token?;
        match token {
            Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        in_tag += 1;
        if in_tag > TAG_TOKENS_MAX || elifs > ELIFS_MAX {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                format!(
                    "line {}: a tag of more than {TAG_TOKENS_MAX} tokens, or more than {ELIFS_MAX} branches",
                    span.start_line
                ),
            ));
        }
    }
    Ok(())
}

/// The same program, guarded.
pub(super) fn guarded<'a>(program: &Stmt<'a>) -> Result<Stmt<'a>> {
    statement(program)
}

fn statements<'a>(list: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>> {
    list.iter().map(statement).collect()
}

fn statement<'a>(stmt: &Stmt<'a>) -> Result<Stmt<'a>> {
    Ok(match stmt {
        Stmt::Template(s) => Stmt::Template(Spanned::new(
            ast::Template {
                children: statements(&s.children)?,
            },
            s.span(),
        )),
        Stmt::EmitExpr(s) => Stmt::EmitExpr(Spanned::new(
            ast::EmitExpr {
                expr: expr(&s.expr)?,
            },
            s.span(),
        )),
        Stmt::EmitRaw(s) => Stmt::EmitExpr(Spanned::new(
            ast::EmitExpr {
                expr: constant(Value::from(s.raw), s.span()),
            },
            s.span(),
        )),
        Stmt::ForLoop(s) => Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target: target(&s.target)?,
                iter: through(ITERATED, expr(&s.iter)?, Vec::new(), s.span()),
                filter_expr: optional(&s.filter_expr)?,
                recursive: s.recursive,
                body: checked(&s.body, s.span())?,
                else_body: statements(&s.else_body)?,
            },
            s.span(),
        )),
        Stmt::IfCond(s) => Stmt::IfCond(Spanned::new(
            ast::IfCond {
                expr: expr(&s.expr)?,
                true_body: statements(&s.true_body)?,
                false_body: statements(&s.false_body)?,
            },
            s.span(),
        )),
        Stmt::WithBlock(s) => Stmt::WithBlock(Spanned::new(
            ast::WithBlock {
                assignments: s
                    .assignments
                    .iter()
                    .map(|(name, value)| Ok((target(name)?, expr(value)?)))
                    .collect::<Result<_>>()?,
                body: statements(&s.body)?,
            },
            s.span(),
        )),
        Stmt::Set(s) => Stmt::Set(Spanned::new(
            ast::Set {
                target: target(&s.target)?,
                expr: expr(&s.expr)?,
            },
            s.span(),
        )),
        Stmt::SetBlock(s) => Stmt::SetBlock(Spanned::new(
            ast::SetBlock {
                target: target(&s.target)?,
                filter: block_filter(&s.filter)?,
                body: statements(&s.body)?,
            },
            s.span(),
        )),
        Stmt::FilterBlock(s) => Stmt::FilterBlock(Spanned::new(
            ast::FilterBlock {
                filter: filter_chain(&s.filter)?,
                body: statements(&s.body)?,
            },
            s.span(),
        )),
        Stmt::Macro(s) => Stmt::Macro(macro_declaration(s)?),
        Stmt::CallBlock(s) => Stmt::CallBlock(Spanned::new(
            ast::CallBlock {
                call: call(&s.call)?,
                macro_decl: macro_declaration(&s.macro_decl)?,
            },
            s.span(),
        )),
        Stmt::Do(s) => Stmt::Do(Spanned::new(
            ast::Do {
                call: call(&s.call)?,
            },
            s.span(),
        )),
        Stmt::Continue(s) => Stmt::Continue(Spanned::new(ast::Continue, s.span())),
        Stmt::Break(s) => Stmt::Break(Spanned::new(ast::Break, s.span())),
        Stmt::AutoEscape(s) => return Err(refused("autoescape", s.span())),
        Stmt::Block(s) => return Err(refused("block", s.span())),
        Stmt::Import(s) => return Err(refused("import", s.span())),
        Stmt::FromImport(s) => return Err(refused("from", s.span())),
        Stmt::Extends(s) => return Err(refused("extends", s.span())),
        Stmt::Include(s) => return Err(refused("include", s.span())),
    })
}

fn refused(tag: &str, span: Span) -> Error {
    Error::new(
        ErrorKind::SyntaxError,
        format!(
            "line {}: '{tag}' has no place in a chat template",
            span.start_line
        ),
    )
}

fn macro_declaration<'a>(s: &Spanned<ast::Macro<'a>>) -> Result<Spanned<ast::Macro<'a>>> {
    Ok(Spanned::new(
        ast::Macro {
            name: s.name,
            args: s.args.iter().map(target).collect::<Result<_>>()?,
            defaults: exprs(&s.defaults)?,
            body: checked(&s.body, s.span())?,
        },
        s.span(),
    ))
}

/// The body of a loop or macro. It begins by writing an empty text, so that even a body that makes
/// nothing checks whether the rendering was cancelled.
fn checked<'a>(body: &[Stmt<'a>], span: Span) -> Result<Vec<Stmt<'a>>> {
    let nothing = constant(Value::from(""), span);
    let mut list = vec![Stmt::EmitExpr(Spanned::new(
        ast::EmitExpr { expr: nothing },
        span,
    ))];
    list.extend(statements(body)?);
    Ok(list)
}

fn exprs<'a>(list: &[Expr<'a>]) -> Result<Vec<Expr<'a>>> {
    list.iter().map(expr).collect()
}

fn optional<'a>(value: &Option<Expr<'a>>) -> Result<Option<Expr<'a>>> {
    value.as_ref().map(expr).transpose()
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

/// `value|name(args)`, with values that are guarded already.
fn through<'a>(name: &'a str, value: Expr<'a>, args: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    Expr::Filter(Spanned::new(
        ast::Filter {
            name,
            expr: Some(value),
            args: args.into_iter().map(ast::CallArg::Pos).collect(),
        },
        span,
    ))
}

/// What is assigned to: left as it is, for it makes nothing.
fn target<'a>(expr: &Expr<'a>) -> Result<Expr<'a>> {
    Ok(match expr {
        Expr::Var(s) => variable(s),
        Expr::GetAttr(s) => Expr::GetAttr(Spanned::new(
            ast::GetAttr {
                expr: target(&s.expr)?,
                name: s.name,
            },
            s.span(),
        )),
        Expr::List(s) => Expr::List(Spanned::new(
            ast::List {
                items: s.items.iter().map(target).collect::<Result<_>>()?,
            },
            s.span(),
        )),
        Expr::Tuple(s) => Expr::Tuple(Spanned::new(
            ast::Tuple {
                items: s.items.iter().map(target).collect::<Result<_>>()?,
            },
            s.span(),
        )),
        other => self::expr(other)?,
    })
}

fn variable<'a>(s: &Spanned<ast::Var<'a>>) -> Expr<'a> {
    Expr::Var(Spanned::new(ast::Var { id: s.id }, s.span()))
}

fn expr<'a>(value: &Expr<'a>) -> Result<Expr<'a>> {
    Ok(match value {
        Expr::Var(s) => variable(s),
        Expr::Const(s) => constant(s.value.clone(), s.span()),
        Expr::Slice(s) => {
            let none = || constant(Value::from(()), s.span());
            let mut bounds = Vec::with_capacity(3);
            for bound in [&s.start, &s.stop, &s.step] {
                bounds.push(optional(bound)?.unwrap_or_else(none));
            }
            through(SLICE, expr(&s.expr)?, bounds, s.span())
        }
        Expr::UnaryOp(s) => {
            let op = if matches!(s.op, ast::UnaryOpKind::Not) {
                ast::UnaryOpKind::Not
            } else {
                ast::UnaryOpKind::Neg
            };
            let operand = expr(&s.expr)?;
            Expr::UnaryOp(Spanned::new(ast::UnaryOp { op, expr: operand }, s.span()))
        }
        Expr::BinOp(s) => binary(s)?,
        Expr::Compare(s) => {
            let mut ops = Vec::with_capacity(s.ops.len());
            for op in &s.ops {
                ops.push(ast::CompareOp {
                    op: op.op,
                    expr: looked_at(COMPARED, expr(&op.expr)?),
                });
            }
            let first = looked_at(COMPARED, expr(&s.expr)?);
            Expr::Compare(Spanned::new(ast::Compare { expr: first, ops }, s.span()))
        }
        Expr::IfExpr(s) => Expr::IfExpr(Spanned::new(
            ast::IfExpr {
                test_expr: expr(&s.test_expr)?,
                true_expr: expr(&s.true_expr)?,
                false_expr: optional(&s.false_expr)?,
            },
            s.span(),
        )),
        Expr::Filter(_) => filter_chain(value)?,
        Expr::Test(s) => Expr::Test(Spanned::new(
            ast::Test {
                name: s.name,
                expr: expr(&s.expr)?,
                args: arguments(&s.args)?,
            },
            s.span(),
        )),
        Expr::GetAttr(s) => Expr::GetAttr(Spanned::new(
            ast::GetAttr {
                expr: expr(&s.expr)?,
                name: s.name,
            },
            s.span(),
        )),
        Expr::GetItem(s) => Expr::GetItem(Spanned::new(
            ast::GetItem {
                expr: looked_at(LOOKED_UP, expr(&s.expr)?),
                subscript_expr: looked_at(COMPARED, expr(&s.subscript_expr)?),
            },
            s.span(),
        )),
        Expr::Call(s) => Expr::Call(call(s)?),
        Expr::List(s) => {
            let items = exprs(&s.items)?;
            let list = Expr::List(Spanned::new(ast::List { items }, s.span()));
            through(CONTAINER, list, Vec::new(), s.span())
        }
        Expr::Tuple(s) => {
            let items = exprs(&s.items)?;
            let tuple = Expr::Tuple(Spanned::new(ast::Tuple { items }, s.span()));
            through(CONTAINER, tuple, Vec::new(), s.span())
        }
        Expr::Map(s) => {
            let (keys, values) = (exprs(&s.keys)?, exprs(&s.values)?);
            let map = Expr::Map(Spanned::new(ast::Map { keys, values }, s.span()));
            through(CONTAINER, map, Vec::new(), s.span())
        }
    })
}

/// An operand that is looked at as a whole; constants are short work.
fn looked_at<'a>(how: &'a str, operand: Expr<'a>) -> Expr<'a> {
    match operand {
        Expr::Const(_) => operand,
        _ => {
            let span = operand.span();
            through(how, operand, Vec::new(), span)
        }
    }
}

fn binary<'a>(s: &Spanned<ast::BinOp<'a>>) -> Result<Expr<'a>> {
    let (left, right, span) = (expr(&s.left)?, expr(&s.right)?, s.span());
    Ok(match s.op {
        ast::BinOpKind::Concat => through(CONCAT, left, vec![right], span),
        ast::BinOpKind::Mul => through(MULTIPLY, left, vec![right], span),
        ast::BinOpKind::Rem => through(REMAINDER, left, vec![right], span),
        ast::BinOpKind::Add => through(SUM, left, vec![right], span),
        op @ (ast::BinOpKind::ScAnd
        | ast::BinOpKind::ScOr
        | ast::BinOpKind::Sub
        | ast::BinOpKind::Div
        | ast::BinOpKind::FloorDiv
        | ast::BinOpKind::Pow) => Expr::BinOp(Spanned::new(ast::BinOp { op, left, right }, span)),
        ast::BinOpKind::Lt => through(LESS, left, vec![right], span),
        ast::BinOpKind::Lte => through(LESS_EQUAL, left, vec![right], span),
        ast::BinOpKind::Gt => through(GREATER, left, vec![right], span),
        ast::BinOpKind::Gte => through(GREATER_EQUAL, left, vec![right], span),
        ast::BinOpKind::In => through(IN, left, vec![right], span),
        op @ (ast::BinOpKind::Eq | ast::BinOpKind::Ne) => {
            let (left, right) = (looked_at(COMPARED, left), looked_at(COMPARED, right));
            Expr::BinOp(Spanned::new(ast::BinOp { op, left, right }, span))
        }
    })
}

fn call<'a>(s: &Spanned<ast::Call<'a>>) -> Result<Spanned<ast::Call<'a>>> {
    let mut args = arguments(&s.args)?;
    if matches!(&s.expr, Expr::GetAttr(method) if method.name == "changed") {
        // `loop.changed` compares its arguments.
        args = args
            .into_iter()
            .map(|arg| match arg {
                ast::CallArg::Pos(value) => ast::CallArg::Pos(looked_at(COMPARED, value)),
                other => other,
            })
            .collect();
    }
    let expr = expr(&s.expr)?;
    Ok(Spanned::new(ast::Call { expr, args }, s.span()))
}

fn arguments<'a>(args: &[ast::CallArg<'a>]) -> Result<Vec<ast::CallArg<'a>>> {
    args.iter()
        .map(|arg| {
            Ok(match arg {
                ast::CallArg::Pos(value) => ast::CallArg::Pos(expr(value)?),
                ast::CallArg::Kwarg(name, value) => ast::CallArg::Kwarg(name, expr(value)?),
                ast::CallArg::PosSplat(value) => {
                    ast::CallArg::PosSplat(looked_at(SPREAD, expr(value)?))
                }
                ast::CallArg::KwargSplat(value) => {
                    ast::CallArg::KwargSplat(looked_at(SPREAD, expr(value)?))
                }
            })
        })
        .collect()
}

fn block_filter<'a>(filter: &Option<Expr<'a>>) -> Result<Option<Expr<'a>>> {
    filter.as_ref().map(filter_chain).transpose()
}

/// Filters count what they make themselves. The innermost of a block's has no operand.
fn filter_chain<'a>(value: &Expr<'a>) -> Result<Expr<'a>> {
    let Expr::Filter(s) = value else {
        return expr(value);
    };
    if s.name.starts_with("__") {
        return Err(refused(s.name, s.span()));
    }
    let operand = s.expr.as_ref().map(filter_chain).transpose()?;
    Ok(Expr::Filter(Spanned::new(
        ast::Filter {
            name: s.name,
            expr: operand,
            args: arguments(&s.args)?,
        },
        s.span(),
    )))
}
